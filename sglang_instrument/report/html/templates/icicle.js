// Draw where the time went as boxes: each event below the one that it ran in, as wide as its time.
"use strict";
R.ROW = 25; // pixels from one row of boxes to the next
R.NARROW = 0.6; // boxes of less pixels are not drawn
R.icicle = { scope: "step", worker: null, by: "steps_sec", zoomed: -1, active: -1, tree: null };

R.ICICLE_HELP = {
  steps_sec:
    "Wall time, as the command events shares it: each instant of a worker is split equally among the " +
    "innermost events that are open. The widths add up to the time of all workers.",
  without_nested_sec:
    "Summed time: each event counts in full, also while others of the same worker run. The widths add up " +
    "to what all requests took together.",
};

// Return the chosen times of each node: `own`, `all` with those of nested events, and the children, longest
// first. Node -1 holds everything.
R.icicleTree = () => {
  const { scope, worker, by } = R.icicle;
  const { event, parent, views } = R.facts.icicle;
  const view = views[scope === "run" ? "" : R.state.step] ?? [];
  const sums = view.find((one) => one.worker === worker) ?? view[0];
  const tree = { nodes: new Map(), workers: view.slice(1).map((one) => one.worker) };
  const at = (node) => {
    const none = { node, event: event[node], own: 0, all: 0, total: 0, count: 0, under: [] };
    if (!tree.nodes.has(node)) tree.nodes.set(node, none);
    return tree.nodes.get(node);
  };
  at(-1);
  sums?.node.forEach((node, row) => {
    Object.assign(at(node), { own: sums[by][row], total: sums.total_sec[row], count: sums.count[row] });
    for (let above = node; above >= 0; above = parent[above]) at(parent[above]);
  });
  const ordered = [...tree.nodes.values()].sort((a, b) => b.node - a.node);
  for (const one of ordered) {
    one.all += one.own;
    if (one.node < 0) continue;
    one.above = at(parent[one.node]);
    one.above.all += one.all;
    one.above.under.push(one);
  }
  for (const one of ordered) one.under.sort((a, b) => b.all - a.all || a.node - b.node);
  return tree;
};

// Place a box and those below it: {one, left, width, row}; lengths are shares of the whole width.
R.icicleBoxes = (one, left, width, row, least) => {
  if (width < least) return [];
  const boxes = [{ one, left, width, row }];
  for (const under of one.under) {
    const share = one.all ? (width * under.all) / one.all : 0;
    boxes.push(...R.icicleBoxes(under, left, share, row + 1, least));
    left += share;
  }
  return boxes;
};

R.icicleWhole = () => {
  const { scope, worker, tree } = R.icicle;
  const name = scope === "run" ? "all training steps" : R.state.step ? R.stepName(R.state.step) : "no step";
  if (worker !== null) return `${name}, worker ${worker}`;
  return tree.workers.length ? `${name}, all workers` : name;
};

R.icicleName = (one) => (one.node < 0 ? R.icicleWhole() : one.event);

R.icicleShade = (one) => R.facts.phases[R.facts.icicle.phase[one.node]];
R.icicleColour = (one) => (one.node < 0 ? R.ink("hover") : R.colour(R.icicleShade(one)));

// Say what a box means: its time, its share, what it spent itself, how often it happened.
R.icicleWords = (one) => {
  const whole = R.icicle.tree.nodes.get(-1);
  const words = [R.seconds(one.all)];
  if (one !== whole) words.push(`${R.percent(whole.all ? one.all / whole.all : 0)} of ${R.icicleWhole()}`);
  if (one.above && one.above !== whole)
    words.push(`${R.percent(one.above.all ? one.all / one.above.all : 0)} of ${one.above.event}`);
  if (one.under.length && one !== whole) words.push(`${R.seconds(one.own)} of its own`);
  if (one.count === 1) words.push("once");
  if (one.count > 1) words.push(`${R.count(one.count)} times, ${R.seconds(one.total / one.count)} each`);
  return words;
};

R.icicleBox = ({ one, left, width, row }) => {
  const colour = R.icicleColour(one);
  const share = R.percent(one.all / (R.icicle.tree.nodes.get(-1).all || 1));
  const text = one.node < 0 ? `${R.icicleName(one)}  ${R.seconds(one.all)}` : `${one.event}  ${share}`;
  const style = {
    left: `${100 * left}%`,
    width: `${100 * width}%`,
    top: `${row * R.ROW}px`,
    background: colour,
    color: R.inkOn(colour),
  };
  const said = `${R.icicleName(one)}: ${R.icicleWords(one).join(", ")}`;
  const about = { role: "treeitem", "aria-level": row + 1, "aria-label": said, "aria-selected": "false" };
  const made = R.el("div", { id: `icicle-${one.node}`, "data-node": one.node, ...about, style });
  if (width * R.$("icicle").clientWidth > 30) made.append(text);
  return made;
};

R.drawIcicle = () => {
  const state = R.icicle;
  const place = R.$("icicle");
  state.tree = R.icicleTree();
  const { nodes } = state.tree;
  if (!nodes.has(state.zoomed)) state.zoomed = -1;
  if (!nodes.has(state.active)) state.active = state.zoomed;
  const zoomed = nodes.get(state.zoomed);
  const path = [];
  for (let one = zoomed.above; one; one = one.above) path.unshift(one);
  const above = path.map((one, row) => ({ one, left: 0, width: 1, row }));
  const least = R.NARROW / Math.max(1, place.clientWidth);
  const boxes = [...above, ...R.icicleBoxes(zoomed, 0, 1, path.length, least)];
  state.boxes = new Map(boxes.map((box) => [box.one.node, box]));
  place.replaceChildren(...boxes.map(R.icicleBox));
  place.style.height = `${R.ROW * (1 + Math.max(...boxes.map((box) => box.row)))}px`;
  R.icicleLegend(boxes.map(({ one }) => one).filter(({ node }) => node >= 0));
  R.$("icicle-out").disabled = state.zoomed < 0;
  R.$("icicle-help").textContent = R.ICICLE_HELP[state.by];
  R.icicleActivate(state.boxes.has(state.active) ? state.active : state.zoomed);
  R.icicleTable();
};

R.icicleLegend = (events) => {
  const parts = new Set(events.map((one) => R.partOf(R.icicleShade(one))));
  const named = R.facts.part_names.filter((part) => parts.has(part) && part !== "unaccounted");
  const words = "made of other events; its own time is unaccounted";
  const made = R.el("span", {}, R.swatch(R.shade("unaccounted")), words);
  R.$("icicle-legend").replaceChildren(...R.legendOf(named), ...(parts.has("unaccounted") ? [made] : []));
};

// Mark a box, and say what it means below the drawing.
R.icicleActivate = (node) => {
  const place = R.$("icicle");
  R.$(`icicle-${R.icicle.active}`)?.setAttribute("aria-selected", "false");
  R.icicle.active = node;
  R.$(`icicle-${node}`).setAttribute("aria-selected", "true");
  place.setAttribute("aria-activedescendant", `icicle-${node}`);
  const one = R.icicle.tree.nodes.get(node);
  const hidden = R.icicle.tree.nodes.size - R.icicle.boxes.size;
  const rest = node < 0 && hidden ? ` ${R.plural(hidden, "event")} too short to draw.` : "";
  R.$("icicle-say").textContent = `${R.icicleName(one)}: ${R.icicleWords(one).join(", ")}.${rest}`;
};

// The same numbers as a table; filled while it is open.
R.icicleTable = () => {
  const details = R.$("icicle-table").closest("details");
  if (!details.open) return;
  const { tree, zoomed } = R.icicle;
  const whole = tree.nodes.get(-1).all || 1;
  const rows = [];
  const add = (one, depth) => {
    if (one.node >= 0) rows.push({ ...one, depth });
    one.under.forEach((under) => add(under, depth + (one.node >= 0)));
  };
  add(tree.nodes.get(zoomed), 0);
  const named = (_, row) => {
    const style = { marginLeft: `${Math.min(row.depth, 12) * 14}px` };
    return R.el("button", { class: "plain", style, onclick: () => R.icicleZoomFromTable(row) }, row.event);
  };
  const columns = [
    ["event", (row) => row.event, named],
    ["inside", (row) => (row.above.node < 0 ? null : row.above.event)],
    ["share", (row) => row.all / whole, R.percent],
    ["time", (row) => row.all, R.seconds],
    ["of its own", (row) => row.own, R.seconds],
    ["times", (row) => row.count, R.count],
    ["each", (row) => (row.count ? row.total / row.count : null), R.seconds],
  ];
  R.tableOf(R.$("icicle-table"), columns, rows);
};
