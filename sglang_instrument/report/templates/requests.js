// The slowest requests and what each was made of; turns, lengths, gaps, the comparison.
"use strict";
R.kinds = [["engine", "generate"], ["tool", "tool"], ["interaction", "interaction"], ["reward", "reward"], ["rest", "other"]];

R.waterfall = (events, whole, turnOf = (row) => row.turn) => {
  const measured = events.some((row) => row.active_sec !== null && row.active_sec !== undefined);
  const rows = [], classes = [];
  let turn = null;
  for (const row of events) {
    const mine = turnOf(row);
    if (mine !== null && mine !== undefined && mine !== turn) {
      turn = mine;
      rows.push([`turn ${turn + 1}`, ...Array(4 + measured * 2).fill("")]);
      classes.push("turn");
    }
    const name = R.el("span", { style: { paddingLeft: `${Math.min(row.depth, 8) * 14}px` } }, row.event, row.open ? " (open)" : "");
    const waited = row.active_sec === null || row.active_sec === undefined ? null : Math.max(0, row.duration_sec - row.active_sec);
    const cells = [name, R.seconds(row.start_sec), R.seconds(row.duration_sec), R.seconds(row.self_sec)];
    if (measured) cells.push(R.seconds(row.active_sec), R.seconds(waited));
    rows.push([...cells, R.track(row, whole)]);
    classes.push("");
  }
  const table = R.el("table", { class: "numbers waterfall" });
  R.table(table, ["event", "start", "time", "itself", ...(measured ? ["active", "waiting"] : []), ""], rows, classes);
  table.querySelectorAll("tr > :last-child").forEach((cell) => cell.classList.add("when"));
  return table;
};

R.track = (row, whole) => {
  const part = (sec) => `${(100 * sec) / whole}%`;
  const phase = row.phase || R.phaseOf(row.event);
  const made = ["step", "request", "turn", "loop"].includes(phase) && row.event !== "event_loop_block"; // of other work
  const colour = made ? "var(--faint)" : R.colour(phase);
  const bar = { left: part(row.start_sec), background: colour };
  return R.el("div", { class: "track" }, R.el("i", { class: row.open ? "open" : null, style: { ...bar, width: part(row.duration_sec) } }), row.self_sec > 0 ? R.el("i", { class: "self", style: { ...bar, width: part(row.self_sec) } }) : null);
};

R.slowestRequests = () => {
  const { slowest } = R.facts;
  R.$("kind-legend").replaceChildren(...R.kinds.map(([kind, phase]) => R.el("span", {}, R.swatch(R.colour(phase)), kind)));
  if (!slowest.length) return R.$("slowest").replaceChildren(R.el("div", { class: "card muted" }, "No request has ended yet."));
  const most = slowest[0].duration_sec || 1;
  R.$("slowest").replaceChildren(...slowest.map((one) => R.slowRequest(one, most)));
};

R.slowRequest = (one, most) => {
  const kinds = R.el("span", { class: "kinds" }, ...R.kinds.map(([kind, phase]) => R.el("span", { style: { width: `${(100 * one[`${kind}_sec`]) / most}%`, background: R.colour(phase) }, title: `${kind}: ${R.seconds(one[`${kind}_sec`])}` })));
  const made = R.el("details", { class: "request" }, R.el("summary", {}, R.el("span", { class: "id", title: one.request_id }, one.request_id ?? "without an id"), R.el("span", { class: "muted" }, `${R.stepName(one.key)}, worker ${one.worker}`), R.el("b", {}, R.seconds(one.duration_sec)), kinds));
  made.addEventListener("toggle", () => {
    if (!made.open || made.children.length > 1) return;
    const left = one.of_events - one.events.length;
    made.append(R.el("div", { class: "open-body" }, R.requestFacts(one, R.full(one.key)), R.el("div", { class: "scroll" }, R.waterfall(one.events, one.duration_sec || 1)), R.engineCalls(one.calls), left > 0 ? R.el("p", { class: "note" }, `and ${R.plural(left, "event")} more: sglang-instrument requests --request ID`) : null));
  });
  return made;
};

// What the engine told of its calls: nothing, where it was asked by other means or by an older SGLang.
R.engineCalls = (calls) => {
  if (!calls.length) return null;
  const table = R.el("table", { class: "numbers" });
  const parts = ["queue_sec", "prefill_sec", "decode_sec", "running_sec", "outside_sec"];
  R.table(table, ["what the engine told", "turn", "time", "in the queue", "prefill", "decode", "running", "outside", "prompt", "cached", "written"], calls.map((call) => [
    R.el("code", {}, call.event), call.turn === null ? R.none : call.turn + 1, R.seconds(call.duration_sec), ...parts.map((part) => R.seconds(call[part])), R.count(call.prompt_tokens), R.count(call.cached_tokens), R.count(call.completion_tokens),
  ]));
  return R.el("div", { class: "scroll told" }, table);
};

R.requestFacts = (one, linked) => {
  const fact = (name, value) => (value === null || value === undefined ? null : R.el("span", {}, `${name} `, R.el("b", {}, value)));
  return R.el("p", { class: "facts" }, fact("turns", one.turns), fact("tokens", one.response_tokens === null ? null : R.count(one.response_tokens)), fact("ended", one.finish_reason), fact("reward", one.reward === null ? null : R.number(one.reward)), fact("error", one.error),
    ...R.kinds.map(([kind]) => (one[`${kind}_sec`] > 0 ? fact(kind, R.seconds(one[`${kind}_sec`])) : null)), linked ? R.el("a", { class: "link", href: R.hashOf({ step: one.key, request: one.request_id }) }, "Show in the timeline →") : null);
};

R.turnsChart = () => {
  const rows = R.facts.turns.turns;
  if (!rows.length) return "No turn was logged.";
  const x = rows.map((row) => row.turn + 1);
  const bar = (name, field, colour, opacity) => ({ type: "bar", name, x, y: rows.map((row) => row[field]), marker: { color: colour, opacity }, hovertemplate: `turn %{x}: ${name} %{y:.3~g} s<extra></extra>` });
  return { data: [bar("p99", "engine_p99_sec", R.colour("generate"), 0.35), bar("median", "engine_p50_sec", R.colour("generate"), 1)], layout: { barmode: "overlay", bargap: 0.35, showlegend: true, xaxis: { title: "turn", dtick: rows.length < 20 ? 1 : undefined, showgrid: false }, yaxis: { title: "seconds", rangemode: "tozero" } } };
};
R.countsChart = () => {
  const rows = R.facts.turns.counts;
  if (!rows.length) return "The number of turns was not logged.";
  return { data: [{ type: "bar", x: rows.map((row) => row.turns), y: rows.map((row) => row.requests), marker: { color: R.ink("accent"), opacity: 0.85 }, customdata: rows.map((row) => [R.percent(row.share), R.seconds(row.mean_sec)]), hovertemplate: "%{x} turns: %{y:,} requests, %{customdata[0]}<br>mean %{customdata[1]}<extra></extra>" }], layout: { bargap: 0.35, xaxis: { title: "turns of a request", dtick: rows.length < 20 ? 1 : undefined, showgrid: false }, yaxis: { title: "requests", rangemode: "tozero" } } };
};
R.turnTable = () => {
  const rows = R.facts.turns.turns;
  if (!rows.length) return R.$("turn-table").closest(".card").remove();
  R.table(R.$("turn-table"), ["turn", "requests", "engine, all", "median", "p99", "tools, all", "interaction, all", "tokens"], rows.map((row) => [row.turn + 1, R.count(row.requests), R.seconds(row.engine_sec), R.seconds(row.engine_p50_sec), R.seconds(row.engine_p99_sec), R.seconds(row.tool_sec), R.seconds(row.interaction_sec), R.count(row.response_tokens)]));
};

R.lengthsChart = () => {
  const rows = R.facts.lengths.steps;
  if (!rows.length) return "Lengths of responses were not logged.";
  const line = (name, field, width, opacity) => ({ type: "scatter", mode: rows.length < 60 ? "lines+markers" : "lines", name, x: rows.map((row) => row.step), y: rows.map((row) => row[field]), line: { width, color: R.ink("accent") }, marker: { size: 5 }, opacity, hovertemplate: `step %{x}: ${name} %{y:,.0f} tokens<extra></extra>` });
  return { data: [line("longest", "max", 1.2, 0.4), line("p95", "p95", 1.6, 0.7), line("mean", "mean", 2.6, 1)], layout: { showlegend: true, xaxis: { title: "step", dtick: rows.length < 12 ? 1 : undefined }, yaxis: { title: "tokens", rangemode: "tozero" } } };
};
R.rewardsChart = () => {
  const rows = R.facts.lengths.deciles;
  if (!rows.length) return "No rewards were logged.";
  return { data: [{ type: "scatter", mode: "lines+markers", x: rows.map((row) => row.decile), y: rows.map((row) => row.reward), line: { color: R.colour("reward"), width: 2.4 }, marker: { size: 7 }, error_y: { type: "data", symmetric: false, array: rows.map((row) => row.high - row.reward), arrayminus: rows.map((row) => row.reward - row.low), color: R.colour("reward"), thickness: 1.2, width: 3 }, customdata: rows.map((row) => [row.from_tokens, row.to_tokens, R.seconds(row.mean_sec)]), hovertemplate: "%{customdata[0]:,} to %{customdata[1]:,} tokens, %{customdata[2]} on average<br>mean reward %{y:.3f}<extra></extra>" }], layout: { xaxis: { title: "tenth of the requests, the shortest first", dtick: 1, showgrid: false }, yaxis: { title: "mean reward", rangemode: "tozero" } } };
};

R.standingStill = () => {
  const { plateaus, blocks, of_plateaus, of_blocks } = R.facts.gaps;
  const key = (row) => `${row.validate ? "v" : ""}${row.step}`;
  const card = (big, title, text, row) => R.el("div", { class: "card still" }, R.el("p", {}, R.el("b", {}, title)), R.el("p", { class: "big" }, big), R.el("p", { class: "muted" }, text), R.full(key(row)) ? R.el("a", { class: "link", href: R.hashOf({ step: key(row) }) }, "Show in the timeline →") : R.el("span"));
  const made = plateaus.map((row) => card(R.seconds(row.to_sec - row.since_sec), `${R.stepName(key(row))}, worker ${row.worker}: ${R.count(row.still)} of ${R.plural(row.requests, "request")} stood still`, `from ${R.seconds(row.since_sec)} to ${R.seconds(row.to_sec)}${row.turn === null ? "" : `, ${R.count(row.in_turn)} of them in turn ${row.turn + 1}, ${row.event}`}${row.times ? `; ${row.times.toFixed(1)} times the usual seconds a token` : ""}`, row));
  made.push(...blocks.map((row) => card(R.seconds(row.held_sec), `${row.step === null ? "" : `${R.stepName(key(row))}, `}${row.role} ${row.worker}: the event loop was held`, `${row.culprit ? `by ${row.culprit}` : "nobody saw by whom"}${row.in_span ? `, in ${row.in_span}` : ""}`, row)));
  const left = of_plateaus - plateaus.length + of_blocks - blocks.length;
  if (left > 0) made.push(R.el("p", { class: "note" }, `and ${R.count(left)} more: sglang-instrument gaps`));
  R.$("still").replaceChildren(...(made.length ? made : [R.el("div", { class: "card muted" }, "Nothing stood still: no plateau, and no event loop was seen to be held.")]));
};

R.comparisonTable = () => {
  if (!R.facts.other) return;
  const rows = R.facts.other.metrics;
  const ends = rows.flatMap((row) => [row.low, row.high]).filter((one) => Number.isFinite(one) && one > 0);
  const reach = Math.max(0.1, ...ends.map((one) => Math.abs(Math.log(one)))) * 1.05;
  const at = (ratio) => 50 + (50 * Math.max(-reach, Math.min(reach, Math.log(Math.max(ratio, 1e-9))))) / reach;
  const interval = (row) => R.el("span", { class: "interval" }, R.el("s", { style: { left: "50%" } }), R.el("i", { style: { left: `${at(row.low)}%`, width: `${at(row.high) - at(row.low)}%` } }), R.el("u", { style: { left: `${at(row.ratio)}%` } }));
  const short = (value) => Number(value.toPrecision(4)).toLocaleString("en");
  R.table(R.$("comparison"), ["metric", R.facts.title, R.facts.other.name, "ratio", "95 %", "", "so"], rows.map((row) => [row.metric, short(row.one), short(row.other), row.ratio.toFixed(3), `${row.low.toFixed(3)} … ${row.high.toFixed(3)}`, interval(row), row.noise ? "noise" : row.ratio > 1 ? "more" : "less"]), rows.map((row) => (row.noise ? "noise" : row.ratio > 1 ? "up" : "down")));
  if (!rows.length) R.$("comparison").replaceWith("The two runs have no step in common.");
};

R.clockTable = () => {
  const rows = R.facts.clocks.filter((row) => row.barriers);
  if (rows.length) R.table(R.$("clocks"), ["clock of", "from the median", "residual", "barriers"], rows.map((row) => [`worker ${row.worker}`, R.seconds(row.offset_sec), R.seconds(row.residual_sec), R.count(row.barriers)]));
};
