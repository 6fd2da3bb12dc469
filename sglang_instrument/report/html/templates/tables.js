// Fill tables that sort by a click on a heading, scroll by keys where they are too wide, and export CSV.
"use strict";
R.MANY_ROWS = 24;

// A column is [heading, value, format]. `value` takes a row; the table sorts and exports what it returns.
// `format` makes it a text or a node; R.alike gives all such times of a table one unit, and those of a column
// one precision. A column of bars has no value and is only drawn: [heading, null, draw].
// `groupOf` names the group that a row begins; groups are shown in the first order alone.
R.tableOf = (table, columns, rows, { classes = [], groupOf = null } = {}) => {
  const shown = rows.map((row, at) => ({ row, class: classes[at] ?? null }));
  const order = { column: -1, down: false };
  columns = R.withUnits(columns, rows);
  const format = (value, how, row) => (how ? how(value, row) : R.isNone(value) ? null : value);
  const cell = ([, value, how], row) =>
    R.el("td", {}, (value ? format(value(row), how, row) : how(row)) ?? R.none);
  const draw = () => {
    const body = [];
    for (const one of R.sorted(shown, columns[order.column], order.down)) {
      const group = order.column < 0 && groupOf ? groupOf(one.row) : null;
      if (group) body.push(R.groupRow(group, columns.length));
      body.push(R.el("tr", { class: one.class }, ...columns.map((column) => cell(column, one.row))));
    }
    table.tBodies[0].replaceChildren(...body);
  };
  table.replaceChildren(R.el("thead", {}, R.headings(columns, order, draw)), R.el("tbody"));
  draw();
  // A long table scrolls in its card; the events of a request are read as a whole.
  const isLong = rows.length > R.MANY_ROWS && !table.classList.contains("waterfall");
  table.closest(".scroll")?.classList.toggle("long", isLong);
  R.equip(table, () => R.csvOf(columns, rows));
};

R.alike = (value) => R.seconds(value);
R.withUnits = (columns, rows) => {
  const timesIn = (value) => rows.map((row) => value(row));
  const beside = columns.flatMap(([, value, how]) => (how === R.alike ? timesIn(value) : []));
  return columns.map(([heading, value, how]) => {
    if (how !== R.alike) return [heading, value, how];
    const { say } = R.timesOf(timesIn(value), { beside, fine: false });
    return [heading, value, Object.assign((one) => say(one), { unit: " (s)" })];
  });
};

R.groupRow = (group, width) => R.el("tr", { class: "turn" }, R.el("td", { colspan: width }, group));

R.sorted = (rows, column, down) => {
  if (!column) return rows;
  const valued = rows.map((one) => [one, column[1](one.row)]);
  const compare = ([, a], [, b]) => (typeof a === "number" ? a - b : String(a).localeCompare(b, "en"));
  const known = valued.filter(([, value]) => !R.isNone(value)).sort(compare);
  if (down) known.reverse();
  return [...known, ...valued.filter(([, value]) => R.isNone(value))].map(([one]) => one);
};

// A heading sorts downwards, then upwards, then restores the first order.
R.headings = (columns, order, draw) => {
  const row = R.el("tr");
  const sort = (at) => {
    const next = order.column !== at ? [at, true] : order.down ? [at, false] : [-1, false];
    [order.column, order.down] = next;
    [...row.cells].forEach((cell, index) => {
      const isBy = index === order.column;
      if (isBy) cell.setAttribute("aria-sort", order.down ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
    });
    draw();
  };
  row.append(
    ...columns.map(([heading, value], at) => {
      const name = value ? R.el("button", { class: "sort", onclick: () => sort(at) }, heading) : heading;
      return R.el("th", { scope: "col" }, value ? name : R.el("span", { class: "sr" }, name));
    }),
  );
  return row;
};

R.csvOf = (columns, rows) => {
  const valued = columns.filter(([, value]) => value);
  const names = valued.map(([heading, , how]) => `${heading}${how?.unit ?? ""}`);
  return [names, ...rows.map((row) => valued.map(([, value]) => value(row)))].map(R.csvLine).join("");
};

// A text that a spreadsheet would take for a formula gets an apostrophe; RFC 4180 has the quotes.
R.csvLine = (values) => {
  const field = (value) => {
    if (R.isNone(value)) return "";
    const text = typeof value === "string" && /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value);
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return `${values.map(field).join(",")}\r\n`;
};

// Put a table's CSV button below it, and let the keys scroll it where it is wider than the page.
R.equip = (table, csv) => {
  const scroll = table.closest(".scroll");
  if (!scroll) return;
  const name = R.nameOf(table);
  if (!scroll.nextElementSibling?.classList.contains("csv")) {
    const label = `${name}: save as CSV`;
    scroll.after(R.el("button", { class: "csv", type: "button", "aria-label": label }, "CSV"));
    R.wide ??= new ResizeObserver((seen) => seen.forEach((one) => R.reachByKeys(one.target)));
    scroll.setAttribute("role", "group");
    R.wide.observe(scroll);
  }
  scroll.setAttribute("aria-label", name);
  scroll.nextElementSibling.onclick = () => R.save(csv(), `${name}.csv`);
};

R.nameOf = (table) => {
  const titles = [table.closest("section")?.querySelector("h2"), table.closest(".card, .open-body")];
  const inner = titles[1]?.querySelector("h3, summary")?.textContent;
  const request = table.closest("details.request")?.querySelector(".id")?.textContent;
  const own = table.dataset.name ?? inner ?? request;
  return [titles[0]?.textContent, own].filter(Boolean).join(", ").trim();
};

R.reachByKeys = (scroll) => {
  const { scrollWidth, clientWidth, scrollHeight, clientHeight } = scroll;
  if (scrollWidth > clientWidth || scrollHeight > clientHeight) scroll.tabIndex = 0;
  else scroll.removeAttribute("tabindex");
};

R.save = (text, name) => {
  const url = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  R.saved = { name, text }; // read by tests
  R.el("a", { href: url, download: name.replaceAll(/[^\p{L}\p{N}.,-]+/gu, "_") }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
};

// Make a table of the template sort and export, too: by the numbers that its cells begin with.
R.equipStatic = (table) => {
  const [body, head] = [table.tBodies[0], table.tHead];
  const rows = [...body.rows].map((row) => ({ row }));
  const text = (at) => (row) => row.cells[at]?.textContent ?? null;
  const cells = [...head.rows[0].cells];
  const columns = cells.map(({ textContent }, at) =>
    textContent ? [textContent, (row) => R.numberIn(text(at)(row))] : ["bar", null],
  );
  const order = { column: -1, down: false };
  const draw = () => {
    const sorted = R.sorted(rows, columns[order.column], order.down);
    body.replaceChildren(...sorted.map(({ row }) => row));
  };
  const made = R.headings(columns, order, draw);
  cells.forEach((cell, at) => (made.cells[at].className = cell.className));
  head.replaceChildren(made);
  const texts = cells.flatMap((cell, at) => (cell.textContent ? [[cell.textContent, text(at)]] : []));
  R.equip(table, () => R.csvOf(texts, rows.map(({ row }) => row)));
};

R.numberIn = (text = "") => {
  const found = /^(<?)(-?[\d,.]+)\s*(us|ms|s|%)?/.exec(text);
  const scale = { us: 1e-6, ms: 1e-3 };
  if (!found) return text === R.none ? null : text;
  return Number(found[2].replaceAll(",", "")) * (scale[found[3]] ?? 1);
};
