// Keep the state of the timeline, and redraw it when the mouse, the keys or a filter change that state.
"use strict";
R.timeline = {
  model: null,
  view: { from: 0, to: 1, top: 0 },
  filter: null,
  placed: null,
  cursor: null,
  pinned: false,
  selected: null,
  told: null,
};
R.noFilter = () => ({
  text: "",
  worker: null,
  event: -1,
  least: 0,
  hidden: 0,
  sort: "duration",
  size: "fit",
});
const LEFT = 132,
  AXIS = 26;

R.tSize = () => {
  const canvas = R.$("t-canvas");
  return {
    width: canvas.clientWidth,
    height: canvas.clientHeight,
    scale: devicePixelRatio || 1,
    plot: Math.max(1, canvas.clientWidth - LEFT),
  };
};

R.showStep = async (key) => {
  const line = R.timeline;
  if (line.key === key) return;
  line.key = key;
  const there = key !== null && R.full(key);
  R.$("timeline-card").classList.toggle("absent", !there);
  line.model = there ? await R.loadModel(key) : null;
  if (line.key !== key) return; // another step was chosen meanwhile
  line.filter = R.noFilter();
  line.selected = null;
  line.cursor = null;
  line.pinned = false;
  line.accused = there ? R.accusedWorker(key) : null;
  R.fillTools();
  R.fillLegend();
  R.wholeStep();
  R.toWorker(line.accused);
};

// Return the worker that a finding names in a step, else the one that the others waited for, else null.
R.accusedWorker = (key) => {
  const { findings, chain, heat } = R.facts;
  if (heat.workers.length === 1) return null;
  const keyOf = (one) => `${one.validate ? "v" : ""}${one.step}`;
  const named = findings.find((one) => one.step !== null && keyOf(one) === key && one.worker !== null);
  return named?.worker ?? (chain?.key === key ? chain.worker : null);
};

// Scroll to a worker, if it is not in view.
R.toWorker = (worker) => {
  const { placed, view } = R.timeline;
  const band = placed?.items.find((one) => one.kind === "band" && one.worker === worker);
  const last = placed?.items.findLast((one) => one.worker === worker);
  if (!band || last.y + last.high <= view.top + R.tSize().height - AXIS) return;
  view.top = Math.max(0, band.y - (R.tSize().height - AXIS) / 3);
  R.place();
};

// Name the colours of the step, in the order in which bands stack them.
R.fillLegend = () => {
  const { model } = R.timeline;
  const seen = new Set(model ? [...new Set(model.phase)].map((at) => R.partOf(R.facts.phases[at])) : []);
  R.$("t-legend").replaceChildren(...R.legendOf(R.facts.part_names.filter((part) => seen.has(part))));
};

R.fillTools = () => {
  const { model, filter } = R.timeline;
  const option = (value, text) => R.el("option", { value }, text);
  R.$("t-worker").replaceChildren(
    option("", "all"),
    ...(model ? model.workers.map((worker) => option(worker, `worker ${worker}`)) : []),
  );
  R.$("t-event").replaceChildren(
    option(-1, "any"),
    ...(model
      ? model.events
          .map((event, index) => [event, index])
          .sort()
          .map(([event, index]) => option(index, event))
      : []),
  );
  for (const [id, value] of [
    ["t-search", ""],
    ["t-least", ""],
    ["t-sort", filter.sort],
    ["t-rows", filter.size],
  ])
    R.$(id).value = value;
};

R.wholeStep = () => {
  const line = R.timeline;
  line.view = { from: 0, to: Math.max(line.model?.extent_sec ?? 1, 1e-6), top: 0 };
  R.place();
};

// Lay out the rows again, and paint.
R.place = () => {
  const line = R.timeline;
  if (line.model) {
    const most = Math.max(420, Math.min(innerHeight * 0.78, 780));
    line.placed = R.layOut(line.model, line.filter, line.filter.size, line.selected, most - AXIS);
    R.$("t-canvas").style.height =
      `${Math.round(Math.max(240, Math.min(most, line.placed.height + AXIS)))}px`;
    R.bound();
  }
  R.repaint();
  R.paintOverview();
};

R.bound = () => {
  const { view, placed, model } = R.timeline;
  const whole = model.extent_sec,
    least = Math.max(model.tick_sec * 50, 1e-5);
  const span = Math.min(whole * 1.02, Math.max(least, view.to - view.from));
  view.from = Math.min(Math.max(view.from, -0.01 * whole), Math.max(0, whole * 1.01 - span));
  view.to = view.from + span;
  view.top = Math.max(0, Math.min(view.top, placed.height - (R.tSize().height - AXIS)));
};

R.repaint = () => {
  const line = R.timeline;
  if (!line.asked)
    line.asked = requestAnimationFrame(() => {
      line.asked = 0;
      R.paint();
    });
};

R.paint = () => {
  const line = R.timeline,
    canvas = R.$("t-canvas"),
    context = canvas.getContext("2d");
  const { width, height, scale, plot } = R.tSize();
  if (!width) return;
  const [w, h] = [Math.round(width * scale), Math.round(height * scale)];
  if (canvas.width !== w || canvas.height !== h) [canvas.width, canvas.height] = [w, h];
  line.inks ??= R.inks();
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.fillStyle = line.inks.card;
  context.fillRect(0, 0, w, h);
  if (!line.model) return R.paintNothing(context, scale, width, height);
  const across = Math.max(1, Math.round(plot * scale)),
    down = Math.max(1, Math.round((height - AXIS) * scale));
  if (line.image?.width !== across || line.image?.height !== down) {
    line.image = new ImageData(across, down);
    line.pixels = new Uint32Array(line.image.data.buffer);
  }
  line.told = R.paintSpans(
    line.pixels,
    across,
    down,
    line.model,
    line.placed,
    line.view,
    line.filter,
    line.inks,
    scale,
  );
  context.putImageData(line.image, Math.round(LEFT * scale), Math.round(AXIS * scale));
  context.setTransform(scale, 0, 0, scale, 0, 0);
  R.paintWords(
    context,
    line.model,
    line.placed,
    line.view,
    line.inks,
    { left: LEFT, top: AXIS, width: plot, height: height - AXIS },
    line.cursor,
    line.selected,
  );
  R.tellNote();
};

R.paintNothing = (context, scale, width, height) => {
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.fillStyle = R.timeline.inks.faint;
  context.font = `14px ${R.ink("sans")}`;
  context.textAlign = "center";
  context.fillText(
    R.timeline.key
      ? "The report has no timeline of this step."
      : "No step has spans to show.",
    width / 2,
    height / 2,
  );
  context.textAlign = "left";
  const { key } = R.timeline;
  R.$("t-note").replaceChildren(
    ...(key && !key.startsWith("v") ? ["This adds the timeline: ", R.rebuilt(key)] : []),
  );
};

R.tellNote = () => {
  const line = R.timeline,
    { told, placed, model, filter } = line;
  const parts = [`${R.plural(told.spans, "span")} in view of ${R.count(model.total)}`];
  if (placed.requests < placed.of)
    parts.push(`${R.count(placed.requests)} of ${R.count(placed.of)} requests shown`);
  if (told.thin) parts.push(`${R.count(told.thin)} are thinner than a pixel, and may overlap`);
  if (placed.each < 1 && placed.requests)
    parts.push(`${Math.ceil(1 / Math.max(placed.each, 1e-9))} requests share a line of pixels`);
  if (line.accused !== null) parts.push(`the verdict names worker ${line.accused}`);
  if (model.moved.length) parts.push("clocks of hosts are aligned, at barriers or by round trips");
  R.$("t-note").textContent = `${parts.join("; ")}.`;
  R.$("t-found").textContent = filter.text ? R.plural(placed.requests, "request") : "";
};

R.paintOverview = () => {
  const { model, view } = R.timeline,
    canvas = R.$("t-overview"),
    context = canvas.getContext("2d");
  const { scale } = R.tSize(),
    width = Math.round(canvas.clientWidth * scale),
    height = Math.round(canvas.clientHeight * scale);
  if (!width || !height) return;
  [canvas.width, canvas.height] = [width, height];
  if (!model) return;
  const inks = (R.timeline.inks ??= R.inks()),
    left = Math.round(LEFT * scale),
    across = width - left;
  context.putImageData(R.overviewOf(model, across, height, inks), left, 0);
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.fillStyle = inks.soft;
  context.font = `11px ${R.ink("sans")}`;
  context.fillText("all requests", 2, 20);
  context.fillText("all workers", 2, 46);
  const x = (sec) => LEFT + (Math.max(0, Math.min(1, sec / model.extent_sec)) * across) / scale;
  context.fillStyle = inks.card;
  context.globalAlpha = 0.66;
  context.fillRect(LEFT, 0, x(view.from) - LEFT, height);
  context.fillRect(x(view.to), 0, width, height);
  context.globalAlpha = 1;
  context.strokeStyle = inks.accent;
  context.strokeRect(
    x(view.from) + 0.5,
    0.5,
    Math.max(2, x(view.to) - x(view.from) - 1),
    canvas.clientHeight - 1,
  );
};

// Paint the overview of the whole step; paint it again only for another step, theme or window size.
R.overviewOf = (model, across, height, inks) => {
  const kept = R.timeline.overview;
  if (
    kept &&
    kept.model === model &&
    kept.inks === inks &&
    kept.image.width === across &&
    kept.image.height === height
  )
    return kept.image;
  const image = new ImageData(across, height),
    pixels = new Uint32Array(image.data.buffer);
  pixels.fill(inks.row);
  const each = (across * model.tick_sec) / model.extent_sec;
  const bottom = Math.round(height * 0.68);
  const rows = model.rows.filter((row) => row.request !== null);
  R.paintBand(pixels, across, height, model, { rows }, 0, bottom, 0, each, inks);
  R.paintWorkers(pixels, across, bottom + 2, height, model, each, inks);
  R.timeline.overview = { model, inks, image };
  return image;
};

// Select a request and scroll to it.
R.selectRequest = (request) => {
  const line = R.timeline;
  if (!line.model) return R.showRequest(null, null);
  const row = request === null ? null : line.model.byRequest.get(request) || null;
  line.selected = row;
  R.showRequest(line.model, row);
  R.place();
  if (!row) return;
  const item = line.placed.items.find((one) => one.kind === "request" && one.row === row);
  const margin = Math.max((row.to - row.from) * 0.05, line.model.tick_sec * 100);
  const room = R.tSize().height - AXIS;
  if (item && (item.y < line.view.top || item.y + 80 > line.view.top + room))
    line.view.top = item.y - room / 3;
  if (row.from < line.view.from || row.to > line.view.to)
    Object.assign(line.view, { from: row.from - margin, to: row.to + margin });
  R.bound();
  R.repaint();
  R.paintOverview();
};
