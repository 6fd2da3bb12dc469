// Show the slowest requests, each with its events.
"use strict";
R.KINDS = [
  ["engine", "generate"],
  ["tool", "tool"],
  ["interaction", "interaction"],
  ["reward", "reward"],
  ["rest", "other"],
];

R.waterfall = (events, whole, turnOf = (row) => row.turn) => {
  const measured = events.some((row) => !R.isNone(row.active_sec));
  const columns = ["event", "start", "time", "itself", ...(measured ? ["running", "suspended"] : []), ""];
  const rows = [];
  const classes = [];
  let turn = null;
  for (const row of events) {
    const mine = turnOf(row);
    if (!R.isNone(mine) && mine !== turn) {
      turn = mine;
      rows.push([`turn ${turn + 1}`, ...Array(columns.length - 1).fill("")]);
      classes.push("turn");
    }
    rows.push(R.waterfallCells(row, whole, measured));
    classes.push("");
  }
  const table = R.el("table", { class: "numbers waterfall" });
  R.table(table, columns, rows, classes);
  table.querySelectorAll("tr > :last-child").forEach((cell) => cell.classList.add("when"));
  return table;
};

R.waterfallCells = (row, whole, measured) => {
  const style = { paddingLeft: `${Math.min(row.depth, 8) * 14}px` };
  const name = R.el("span", { style }, row.event, row.open ? " (open)" : "");
  const cells = [name, R.seconds(row.start_sec), R.seconds(row.duration_sec), R.seconds(row.self_sec)];
  if (measured) {
    const suspended = R.isNone(row.active_sec) ? null : Math.max(0, row.duration_sec - row.active_sec);
    cells.push(R.seconds(row.active_sec), R.seconds(suspended));
  }
  return [...cells, R.track(row, whole)];
};

// A bar from the event's start to its end; its solid part is the event's self time.
R.track = (row, whole) => {
  const part = (sec) => `${(100 * sec) / whole}%`;
  const phase = row.phase || R.phaseOf(row.event);
  const structures = ["step", "request", "turn", "loop"]; // made of other events
  const isStructure = structures.includes(phase) && row.event !== "event_loop_block";
  const bar = { left: part(row.start_sec), background: isStructure ? "var(--faint)" : R.colour(phase) };
  const whenOpen = { class: row.open ? "open" : null, style: { ...bar, width: part(row.duration_sec) } };
  const itself = R.el("i", { class: "self", style: { ...bar, width: part(row.self_sec) } });
  return R.el("div", { class: "track" }, R.el("i", whenOpen), row.self_sec > 0 ? itself : null);
};

R.slowestRequests = () => {
  const { slowest } = R.facts;
  const named = ([kind, phase]) => R.el("span", {}, R.swatch(R.colour(phase)), kind);
  R.$("kind-legend").replaceChildren(...R.KINDS.map(named));
  const none = R.el("div", { class: "card muted" }, "No request has ended yet.");
  const most = slowest[0]?.duration_sec || 1;
  const cards = slowest.map((one) => R.slowRequest(one, most));
  R.$("slowest").replaceChildren(...(cards.length ? cards : [none]));
};

R.slowRequest = (one, most) => {
  const made = R.el(
    "details",
    { class: "request" },
    R.el(
      "summary",
      {},
      R.el("span", { class: "id", title: one.request_id }, one.request_id ?? "without an id"),
      R.el("span", { class: "muted" }, `${R.stepName(one.key)}, worker ${one.worker}`),
      R.el("b", {}, R.seconds(one.duration_sec)),
      R.kindsBar(one, most),
    ),
  );
  made.addEventListener("toggle", () => {
    if (made.open && made.children.length === 1) made.append(R.slowRequestBody(one));
  });
  return made;
};

R.kindsBar = (one, most) => {
  const piece = ([kind, phase]) => {
    const sec = one[`${kind}_sec`];
    const style = { width: `${(100 * sec) / most}%`, background: R.colour(phase) };
    return R.el("span", { style, title: `${kind}: ${R.seconds(sec)}` });
  };
  return R.el("span", { class: "kinds" }, ...R.KINDS.map(piece));
};

R.slowRequestBody = (one) => {
  const left = one.of_events - one.events.length;
  const more = `and ${R.plural(left, "event")} more: sglang-instrument requests --request ID`;
  return R.el(
    "div",
    { class: "open-body" },
    R.requestFacts(one, R.full(one.key)),
    R.el("div", { class: "scroll" }, R.waterfall(one.events, one.duration_sec || 1)),
    R.engineCalls(one.calls),
    left > 0 ? R.el("p", { class: "note" }, more) : null,
  );
};

// List the times that the engine reported; older versions of SGLang report none.
R.engineCalls = (calls) => {
  if (!calls.length) return null;
  const columns = [
    ["reported by the engine", (call) => R.el("code", {}, call.event)],
    ["turn", (call) => (call.turn === null ? R.none : call.turn + 1)],
    ["time", (call) => R.seconds(call.duration_sec)],
    ["in the queue", (call) => R.seconds(call.queue_sec)],
    ["prefill", (call) => R.seconds(call.prefill_sec)],
    ["decode", (call) => R.seconds(call.decode_sec)],
    ["running", (call) => R.seconds(call.running_sec)],
    ["outside", (call) => R.seconds(call.outside_sec)],
    ["prompt", (call) => R.count(call.prompt_tokens)],
    ["cached", (call) => R.count(call.cached_tokens)],
    ["written", (call) => R.count(call.completion_tokens)],
  ];
  const table = R.el("table", { class: "numbers" });
  R.tableOf(table, columns, calls);
  return R.el("div", { class: "scroll told" }, table);
};

R.requestFacts = (one, linked) => {
  const fact = (name, value) => (R.isNone(value) ? null : R.el("span", {}, `${name} `, R.el("b", {}, value)));
  const kind = ([name]) => (one[`${name}_sec`] > 0 ? fact(name, R.seconds(one[`${name}_sec`])) : null);
  const href = R.hashOf({ step: one.key, request: one.request_id });
  return R.el(
    "p",
    { class: "facts" },
    fact("turns", one.turns),
    fact("tokens", R.isNone(one.response_tokens) ? null : R.count(one.response_tokens)),
    fact("ended", one.finish_reason),
    fact("reward", R.isNone(one.reward) ? null : R.number(one.reward)),
    fact("error", one.error),
    ...R.KINDS.map(kind),
    linked ? R.el("a", { class: "link", href }, "Show in the timeline →") : null,
  );
};
