// Show what ran at the cursor's time, and the events of the selected request.
"use strict";

R.showMoment = (model, sec) => {
  const place = R.$("t-moment");
  const wide = (title, content) => R.el("div", { class: "wide" }, R.el("small", {}, title), content);
  if (!model || sec === null) {
    const hint = R.el("span", { class: "muted" }, "Point at the timeline.");
    return place.replaceChildren(wide("at this moment", hint));
  }
  const told = R.momentOf(model, sec);
  const card = (title, value, id) =>
    R.el("div", {}, R.el("small", {}, title), R.el("b", { "data-moment": id }, value));
  const phases = [...told.phases].sort((a, b) => b[1] - a[1]).map(R.phaseCount);
  const workers =
    told.barrier.length === model.workers.length && told.barrier.length > 1
      ? `all ${told.barrier.length} workers`
      : R.rangesOf(told.barrier);
  place.replaceChildren(
    card("at", R.seconds(sec), "at"),
    card("not started", R.count(told.before), "before"),
    card("running", R.count(told.running), "running"),
    card("done", R.count(told.done), "done"),
    card("engine calls in flight", R.count(told.calls), "calls"),
    wide(
      "the running ones are in",
      R.el("div", { class: "legend" }, ...(phases.length ? phases : [R.el("span", {}, "nothing")])),
    ),
    wide("at the barrier", R.el("span", { "data-moment": "barrier" }, workers || "nobody")),
  );
};

R.phaseCount = ([phase, count]) => {
  const part = phase < 0 ? "unaccounted" : R.partOf(R.facts.phases[phase]);
  return R.el("span", {}, R.swatch(R.shade(part)), part, R.el("b", {}, R.count(count)));
};

// worker 3; workers 1-7, 9
R.rangesOf = (workers) => {
  const ranges = [];
  for (const worker of [...workers].sort((a, b) => a - b)) {
    if (ranges.length && ranges.at(-1)[1] === worker - 1) ranges.at(-1)[1] = worker;
    else ranges.push([worker, worker]);
  }
  const words = ranges.map(([from, to]) => (from === to ? `${from}` : `${from}–${to}`)).join(", ");
  return words && `worker${workers.length === 1 ? "" : "s"} ${words}`;
};

R.showRequest = (model, row) => {
  const place = R.$("inspector");
  place.hidden = !row;
  if (!row) return place.replaceChildren();
  const events = R.eventsOf(model, row);
  const facts = {
    ...row,
    key: R.state.step,
    request_id: row.request,
    response_tokens: row.tokens,
    finish_reason: row.finish,
  };
  const deselect = (event) => {
    event.preventDefault();
    R.go({ request: null });
  };
  place.replaceChildren(
    R.el(
      "h3",
      {},
      R.el("span", { class: "id" }, row.request),
      R.el("a", { class: "link", href: "#timeline", onclick: deselect }, "Deselect"),
    ),
    R.el(
      "p",
      { class: "facts" },
      R.el("span", {}, R.el("b", {}, `${R.stepName(R.state.step)}, worker ${row.worker}`)),
      R.el("span", {}, row.open ? "unended; open for " : "took ", R.el("b", {}, R.seconds(row.duration))),
      R.el("span", {}, "began at ", R.el("b", {}, R.seconds(row.from))),
    ),
    R.requestFacts(facts, false),
    R.waterfall(events, Math.max(row.to - row.from, 1e-9)),
  );
};

// Return the events of a row for the waterfall; self time is the duration minus the children's time.
R.eventsOf = (model, row) => {
  const spans = [];
  for (let span = row.first; span < row.end; span++) spans.push(span);
  spans.sort((a, b) => model.start[a] - model.start[b] || model.depth[a] - model.depth[b]);
  return spans.slice(0, 400).map((span) => ({
    event: model.events[model.event[span]],
    phase: R.facts.phases[model.phase[span]],
    turn: model.turn[span] === R.TURNLESS ? null : model.turn[span],
    depth: model.depth[span],
    unended: Boolean(model.flags[span] & R.OPEN),
    start_sec: model.start[span] * model.tick_sec - row.from,
    duration_sec: model.ticks[span] * model.tick_sec,
    without_nested_sec: model.self[span] * model.tick_sec,
    fields: model.fields[model.words[span]],
    active_sec: model.active[span] ? (model.active[span] - 1) * model.tick_sec : null,
  }));
};
