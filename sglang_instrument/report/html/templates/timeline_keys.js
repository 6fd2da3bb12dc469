// Handle the keys on the timeline, and say what they changed to screen readers.
"use strict";

R.tSpan = () => R.timeline.view.to - R.timeline.view.from;
R.sideways = (to) => (event) =>
  event.shiftKey ? R.moveMoment(to * 0.02 * R.tSpan()) : R.pan(to * 0.12 * R.tSpan());
R.keys_ = {
  ArrowLeft: R.sideways(-1),
  ArrowRight: R.sideways(1),
  ArrowUp: () => R.pan(0, -60),
  ArrowDown: () => R.pan(0, 60),
  a: R.sideways(-1),
  d: R.sideways(1),
  w: () => R.zoom(0.75),
  s: () => R.zoom(1 / 0.75),
  n: () => R.neighbour(1),
  p: () => R.neighbour(-1),
  "+": () => R.zoom(0.7),
  "=": () => R.zoom(0.7),
  "-": () => R.zoom(1 / 0.7),
  0: () => R.wholeStep(),
  Home: () => R.wholeStep(),
  Enter: () => R.timeline.selected && R.$("inspector").focus(),
  Escape: () => {
    R.timeline.pinned = false;
    R.go({ request: null });
  },
};

// Move the time of "at this moment", and keep it there.
R.moveMoment = (sec) => {
  const { view, model, cursor } = R.timeline;
  const from = cursor ?? (view.from + view.to) / 2;
  R.timeline.pinned = true;
  R.setCursor(Math.max(0, Math.min(model.extent_sec, from + sec)));
};

// Select the next or the previous of the requests that are shown.
R.neighbour = (by) => {
  const rows = R.timeline.placed.items.filter((item) => item.kind === "request").map((item) => item.row);
  const at = rows.indexOf(R.timeline.selected);
  const next = rows[at < 0 ? (by > 0 ? 0 : rows.length - 1) : at + by];
  if (next) R.go({ request: next.request });
};

R.say = () => {
  const { view, model, cursor, pinned, selected } = R.timeline;
  const parts = [`${R.seconds(Math.max(0, view.from))} to ${R.seconds(view.to)} in view`];
  if (pinned && cursor !== null) {
    const told = R.momentOf(model, cursor);
    const counts = `${told.before} requests not started, ${told.running} running, ${told.done} done`;
    parts.push(`at ${R.seconds(cursor)}: ${counts}`);
  }
  if (selected) parts.push(`request ${selected.request} took ${R.seconds(selected.duration)}`);
  R.$("t-say").textContent = `${parts.join("; ")}.`;
};

R.wireKeys = (canvas) => {
  canvas.addEventListener("keydown", (event) => {
    const act = event.ctrlKey || event.metaKey || event.altKey ? null : R.keys_[event.key];
    if (!act || !R.timeline.model) return;
    event.preventDefault();
    act(event);
    setTimeout(R.say, 150); // a selection is shown by then
  });
  // Only within the timeline: single keys must not act where somebody dictates or types.
  R.$("timeline-card").addEventListener("keydown", (event) => {
    if (event.key !== "/" || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
    event.preventDefault();
    R.$("t-search").focus();
  });
};
