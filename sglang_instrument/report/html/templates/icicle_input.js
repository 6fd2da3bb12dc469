// Zoom into boxes by mouse and keys, and keep the requests with the chosen event in the timeline.
"use strict";

R.icicleZoom = (node) => {
  R.icicle.zoomed = node;
  R.icicle.active = node;
  R.drawIcicle();
  R.keepEvent(node < 0 ? null : R.facts.icicle.event[node]);
};

// The table is drawn again: its first row is the event that was chosen, and keeps the focus.
R.icicleZoomFromTable = ({ node }) => {
  R.icicleZoom(node);
  R.$("icicle-table").querySelector(".plain").focus();
};

// Keep the requests with an event in the timeline; null keeps all.
R.keepEvent = (event) => {
  const { model, filter } = R.timeline;
  if (!model) return;
  filter.event = model.events.indexOf(event);
  R.$("t-event").value = filter.event;
  R.place();
};

// Go to the box beside, above or below the active one, of those that are drawn.
R.icicleMove = (key) => {
  const { active, boxes } = R.icicle;
  const box = boxes.get(active);
  const row = [...boxes.values()].filter((one) => one.row === box.row).sort((a, b) => a.left - b.left);
  const below = [...boxes.values()].filter((one) => one.one.above === box.one);
  const next = {
    ArrowUp: () => boxes.get(box.one.above?.node),
    ArrowDown: () => below[0],
    ArrowLeft: () => row[row.indexOf(box) - 1],
    ArrowRight: () => row[row.indexOf(box) + 1],
  }[key]();
  if (next) R.icicleActivate(next.one.node);
};

R.icicleKey = (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const { active, zoomed, tree } = R.icicle;
  const out = tree.nodes.get(zoomed).above?.node ?? -1;
  const acts = { Enter: active, " ": active, Escape: -1, Home: -1, 0: -1, Backspace: out };
  if (event.key in acts) R.icicleZoom(acts[event.key]);
  else if (event.key.startsWith("Arrow")) R.icicleMove(event.key);
  else return;
  event.preventDefault();
};

// Offer the workers of the chosen step, or of the run.
R.fillIcicleWorkers = () => {
  const { tree } = R.icicle;
  const options = [["", "all"], ...tree.workers.map((worker) => [worker, `worker ${worker}`])];
  if (!tree.workers.includes(R.icicle.worker)) R.icicle.worker = null;
  const field = R.$("icicle-worker");
  field.replaceChildren(...options.map(([value, text]) => R.el("option", { value }, text)));
  field.value = R.icicle.worker ?? "";
};

// Show another step, the run, or another worker, as a whole.
R.resetIcicle = () => {
  if (R.icicle.zoomed >= 0) R.keepEvent(null);
  Object.assign(R.icicle, { zoomed: -1, active: -1, tree: R.icicleTree() });
  R.fillIcicleWorkers();
  R.drawIcicle();
};

R.wireIcicle = () => {
  const place = R.$("icicle");
  const nodeAt = (event) => event.target.closest("[data-node]");
  place.addEventListener("click", (event) => {
    const box = nodeAt(event);
    if (box) R.icicleZoom(Number(box.dataset.node));
  });
  place.addEventListener("pointermove", (event) => {
    const one = R.icicle.tree.nodes.get(Number(nodeAt(event)?.dataset.node));
    if (one) R.tip(event, R.icicleName(one), ...R.icicleWords(one));
    else R.tip(null);
  });
  place.addEventListener("pointerleave", () => R.tip(null));
  place.addEventListener("keydown", R.icicleKey);
  const wire = (id, change) => R.$(id).addEventListener("input", () => change(R.$(id).value));
  wire("icicle-scope", (value) => {
    R.icicle.scope = value;
    R.resetIcicle();
  });
  wire("icicle-worker", (value) => {
    R.icicle.worker = value === "" ? null : Number(value);
    R.drawIcicle();
  });
  wire("icicle-by", (value) => {
    R.icicle.by = value;
    R.drawIcicle();
  });
  R.$("icicle-out").addEventListener("click", () => R.icicleZoom(-1));
  R.$("icicle-table").closest("details").addEventListener("toggle", R.icicleTable);
  let width = 0;
  const fit = () => {
    if (width === place.clientWidth || !R.icicle.tree) return;
    width = place.clientWidth;
    R.drawIcicle();
  };
  new ResizeObserver(() => requestAnimationFrame(fit)).observe(place);
  R.themeListeners.push(() => R.icicle.tree && R.drawIcicle());
};
