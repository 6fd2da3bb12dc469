// Show the slowest requests, each with its events.
"use strict";
R.KINDS = ["engine", "tool", "interaction", "reward", "rest"];

R.waterfall = (events, whole, turnOf = (row) => row.turn) => {
  const measured = events.some((row) => !R.isNone(row.active_sec));
  const running = [
    ["running", (row) => row.active_sec, R.seconds],
    ["suspended", (row) => R.suspended(row), R.seconds],
  ];
  const columns = [
    ["event", (row) => row.event, R.eventName],
    ["turn", (row) => (R.isNone(turnOf(row)) ? null : turnOf(row) + 1)],
    ["start", (row) => row.start_sec, R.seconds],
    ["time", (row) => row.duration_sec, R.seconds],
    ["itself", (row) => row.without_nested_sec, R.seconds],
    ...(measured ? running : []),
    ...(events.some((row) => row.fields) ? [["fields", (row) => row.fields || null, R.fieldsOf]] : []),
    ["from start to end", null, (row) => R.track(row, whole)],
  ];
  const groups = new Map();
  let turn = null;
  for (const row of events) {
    if (R.isNone(turnOf(row)) || turnOf(row) === turn) continue;
    turn = turnOf(row);
    groups.set(row, `turn ${turn + 1}`);
  }
  const table = R.el("table", { class: "numbers waterfall" });
  const scroll = R.el("div", { class: "scroll" }, table);
  const boxed = R.el("div", {}, scroll);
  R.tableOf(table, columns, events, { groupOf: (row) => groups.get(row) });
  return boxed;
};

R.eventName = (event, row) => {
  const style = { paddingLeft: `${Math.min(row.depth, 8) * 14}px` };
  return R.el("span", { style }, event, row.unended ? " (unended)" : "");
};
R.fieldsOf = (words) => R.el("span", { class: "fields" }, words ?? "");
R.suspended = (row) => (R.isNone(row.active_sec) ? null : Math.max(0, row.duration_sec - row.active_sec));

// A bar from the event's start to its end; its solid part is the event's self time.
R.track = (row, whole) => {
  const part = (sec) => `${(100 * sec) / whole}%`;
  const phase = row.phase || R.phaseOf(row.event);
  const background = R.shade(phase);
  const bar = { left: part(row.start_sec), background };
  const whenOpen = { class: row.unended ? "open" : null, style: { ...bar, width: part(row.duration_sec) } };
  const itself = R.el("i", { class: "self", style: { ...bar, width: part(row.without_nested_sec) } });
  return R.el("div", { class: "track" }, R.el("i", whenOpen), row.without_nested_sec > 0 ? itself : null);
};

R.slowestRequests = () => {
  const { slowest } = R.facts;
  R.$("kind-legend").replaceChildren(...R.legendOf(R.KINDS));
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
      R.el(
        "span",
        { class: "muted" },
        `${one.agent ? `${one.agent}, ` : ""}${R.stepName(one.key)}, worker ${one.worker}`,
      ),
      R.el("b", {}, R.seconds(one.duration_sec), one.unended ? " so far (unended)" : ""),
      R.kindsBar(one, most),
    ),
  );
  made.addEventListener("toggle", () => {
    if (made.open && made.children.length === 1) made.append(R.slowRequestBody(one));
  });
  return made;
};

R.kindsBar = (one, most) => {
  const piece = (kind) => {
    const sec = one[`${kind}_sec`];
    const style = { width: `${(100 * sec) / most}%`, background: R.shade(kind) };
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
    R.requestTree(one),
    R.waterfall(one.events, one.duration_sec || 1),
    R.engineCalls(one.calls),
    left > 0 ? R.el("p", { class: "note" }, more) : null,
  );
};

// Show the requests of agents below those that they work for; the solid part of a bar decided the whole.
R.requestTree = ({ tree, request_id }) => {
  if (!tree.length) return null;
  const name = (id, row) => {
    const style = { paddingLeft: `${Math.min(row.depth, 8) * 14}px` };
    return R.el(id === request_id ? "b" : "span", { style }, id, row.unended ? " (unended)" : "");
  };
  const whole = tree[0].duration_sec || 1;
  const bar = (row) => R.track({ ...row, phase: "generate", without_nested_sec: row.path_sec }, whole);
  const columns = [
    ["request", (row) => row.request_id, name],
    ["agent", (row) => row.agent],
    ["start", (row) => row.start_sec, R.seconds],
    ["time", (row) => row.duration_sec, R.seconds],
    ["decides", (row) => row.path_sec, R.seconds],
    ["engine", (row) => row.engine_sec, R.seconds],
    ["tools", (row) => row.tool_sec, R.seconds],
    ["tokens", (row) => row.response_tokens, R.count],
    ["from start to end", null, bar],
  ];
  const table = R.el("table", { class: "numbers waterfall", "data-name": "agents" });
  R.tableOf(table, columns, tree);
  return R.el("div", { class: "told" }, R.el("div", { class: "scroll" }, table));
};

// List the times that the engine reported; older versions of SGLang report none.
R.engineCalls = (calls) => {
  if (!calls.length) return null;
  const columns = [
    ["reported by the engine", (call) => call.event, (event) => R.el("code", {}, event)],
    ["turn", (call) => (call.turn === null ? null : call.turn + 1)],
    ["time", (call) => call.duration_sec, R.seconds],
    ["in the queue", (call) => call.queue_sec, R.seconds],
    ["prefill", (call) => call.prefill_sec, R.seconds],
    ["decode", (call) => call.decode_sec, R.seconds],
    ["running", (call) => call.running_sec, R.seconds],
    ["outside", (call) => call.outside_sec, R.seconds],
    ["prompt", (call) => call.prompt_tokens, R.count],
    ["cached", (call) => call.cached_tokens, R.count],
    ["written", (call) => call.completion_tokens, R.count],
  ];
  const table = R.el("table", { class: "numbers", "data-name": "engine calls" });
  const boxed = R.el("div", { class: "told" }, R.el("div", { class: "scroll" }, table));
  R.tableOf(table, columns, calls);
  return boxed;
};

R.requestFacts = (one, linked) => {
  const fact = (name, value) => (R.isNone(value) ? null : R.el("span", {}, `${name} `, R.el("b", {}, value)));
  const kind = (name) => (one[`${name}_sec`] > 0 ? fact(name, R.seconds(one[`${name}_sec`])) : null);
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
