// Paint the timeline. Spans are written into a pixel buffer: one canvas call for each span would be too slow.
// Text is drawn on top. Of spans that share a pixel, the deepest is visible; of equally deep ones, the last.
"use strict";

R.packed = (colour, alpha = 1, onto = null) => {
  const part = (text, at) => parseInt(text.slice(1 + 2 * at, 3 + 2 * at), 16);
  const mix = [0, 1, 2].map((at) =>
    onto ? Math.round(part(colour, at) * alpha + part(onto, at) * (1 - alpha)) : part(colour, at),
  );
  return ((255 << 24) | (mix[2] << 16) | (mix[1] << 8) | mix[0]) >>> 0; // as the buffer holds it
};

R.inks = () => {
  const card = R.ink("card");
  const colours = R.facts.phases.map(R.colour);
  return {
    card,
    line: R.ink("line"),
    soft: R.ink("soft"),
    faint: R.ink("faint"),
    ink: R.ink("ink"),
    hover: R.ink("hover"),
    accent: R.ink("accent"),
    bad: R.ink("bad"),
    paper: R.packed(card),
    row: R.packed(R.ink("grid"), 0.55, card),
    full: colours.map((one) => R.packed(one)),
    words: colours.map(R.inkOn),
    idle: R.packed(R.colour("unaccounted")),
  };
};

// view: {from, to} in seconds, {top} in pixels of the screen; width and height of the plot in device pixels.
R.paintSpans = (pixels, width, height, model, placed, view, filter, inks, scale) => {
  pixels.fill(inks.paper);
  const told = { spans: 0, thin: 0, dimmed: 0 };
  const ticks = view.from / model.tick_sec,
    each = (width * model.tick_sec) / (view.to - view.from);
  for (const item of placed.items) {
    const top = Math.floor((item.y - view.top) * scale),
      bottom = Math.max(
        top + 1,
        Math.floor((item.y + item.high - view.top) * scale) - (item.high >= 4 ? 1 : 0),
      );
    if (bottom <= 0 || top >= height) continue;
    if (item.kind === "band") R.paintBand(pixels, width, height, model, item, top, bottom, ticks, each, inks);
    else if (item.kind === "lanes")
      R.paintLanes(pixels, width, height, model, item, top, ticks, each, inks, scale, placed, filter);
    else
      R.paintRow(
        pixels,
        width,
        height,
        model,
        item.row,
        top,
        bottom,
        ticks,
        each,
        inks,
        told,
        placed,
        filter,
      );
  }
  return told;
};

R.paintRow = (pixels, width, height, model, row, top, bottom, ticks, each, inks, told, placed, filter) => {
  const { start, ticks: lasts, phase, flags } = model;
  const y = Math.max(0, top),
    base = y * width,
    stop = Math.min(height, bottom);
  if (stop - y > 1) pixels.fill(inks.row, base, base + width);
  for (let span = row.first; span < row.end; span++) {
    const from = (start[span] - ticks) * each,
      to = from + lasts[span] * each;
    if (to < 0 || from >= width) continue;
    told.spans++;
    if (to - from < 1) told.thin++;
    const kind = phase[span];
    const dim = placed.filtering && !R.wanted(model, filter, span);
    if (dim) told.dimmed++;
    const colour = inks.full[kind];
    const x0 = from < 0 ? 0 : from | 0,
      x1 = to >= width ? width : Math.max(x0 + 1, to | 0);
    // A faded span lies below the others, even if it ran inside them.
    if (dim) {
      for (let x = base + x0; x < base + x1; x++) if (pixels[x] === inks.paper) pixels[x] = inks.row;
    } else if (flags[span] & R.OPEN)
      for (let x = x0; x < x1; x++) pixels[base + x] = x % 8 < 5 ? colour : inks.paper;
    else if (x1 - x0 < 24) for (let x = x0; x < x1; x++) pixels[base + x] = colour;
    else pixels.fill(colour, base + x0, base + x1);
  }
  for (let line = y + 1; line < stop; line++) pixels.copyWithin(line * width, base, base + width);
};

R.paintLanes = (pixels, width, height, model, item, top, ticks, each, inks, scale, placed, filter) => {
  const lane = Math.floor(R.LANE * scale),
    edge = Math.max(1, Math.floor(scale * 2));
  for (const [span, at] of item.lanes.lane) {
    const from = (model.start[span] - ticks) * each,
      to = from + model.ticks[span] * each;
    if (to < 0 || from >= width) continue;
    const dim = placed.filtering && !R.wanted(model, filter, span);
    const kind = model.phase[span];
    const colour = dim ? inks.row : inks.full[kind];
    const x0 = Math.max(0, from | 0),
      x1 = Math.min(width, Math.max(x0 + 1, (to | 0) - (to - from > 4 ? 1 : 0)));
    const y0 = top + 4 * scale + at * lane,
      y1 = Math.min(height, y0 + lane - edge);
    for (let y = Math.max(0, y0 | 0); y < y1; y++) {
      if (model.flags[span] & R.OPEN)
        for (let x = x0; x < x1; x++) pixels[y * width + x] = (x + y) % 9 < 6 ? colour : inks.paper;
      else pixels.fill(colour, y * width + x0, y * width + x1);
    }
  }
};

// Paint what the workers did outside of requests: a column of pixels has the phase of each, the first on top.
R.paintWorkers = (pixels, width, top, bottom, model, each, inks) => {
  const own = model.rows.filter((row) => row.request === null);
  const high = (bottom - top) / Math.max(1, own.length);
  own.forEach((row, at) => {
    const [from, to] = [top + Math.floor(at * high), top + Math.max(1, Math.floor((at + 1) * high))];
    const told = { spans: 0, thin: 0, dimmed: 0 };
    R.paintRow(pixels, width, bottom, model, row, from, to, 0, each, inks, told, { filtering: false }, null);
  });
};

// Paint the number of a worker's requests in each phase, one pixel column at a time. A single request among
// thousands is less than a pixel high: at least two pixels show that some run.
R.paintBand = (pixels, width, height, model, item, top, bottom, ticks, each, inks) => {
  const counts = R.countPhases(model, item.rows, width, ticks, each);
  const room = bottom - top - 3,
    most = Math.max(1, item.rows.length);
  for (let x = 0; x < width; x++) {
    let at = bottom,
      sum = 0;
    for (const layer of counts) {
      if (!layer.at[x]) continue;
      sum += layer.at[x];
      const until = bottom - Math.max(2, Math.round((sum / most) * room));
      const colour = layer.phase < 0 ? inks.idle : inks.full[layer.phase];
      for (let y = Math.min(at, height) - 1; y >= Math.max(0, until); y--) pixels[y * width + x] = colour;
      at = Math.min(at, until);
    }
  }
};

R.countPhases = (model, rows, width, ticks, each) => {
  const size = width + 1,
    phases = R.facts.phases.length;
  R.scratch =
    R.scratch?.length === size * (phases + 1) ? R.scratch.fill(0) : new Int32Array(size * (phases + 1));
  const counts = R.scratch,
    seen = new Set();
  const add = (phase, from, to) => {
    if (to < 0 || from >= width) return;
    const x0 = from < 0 ? 0 : from | 0,
      x1 = to >= width ? width : to | 0;
    counts[phase * size + x0]++;
    counts[phase * size + x1]--;
  };
  for (const row of rows) {
    add(phases, (row.from / model.tick_sec - ticks) * each, (row.to / model.tick_sec - ticks) * each);
    for (let span = row.first; span < row.end; span++) {
      if (!(model.flags[span] & R.COUNTED)) continue;
      const from = (model.start[span] - ticks) * each;
      seen.add(model.phase[span]);
      add(model.phase[span], from, from + model.ticks[span] * each);
    }
  }
  // The other running requests are in no counted phase: unaccounted.
  const layers = [...seen]
    .sort((a, b) => R.bandOrder(a) - R.bandOrder(b))
    .map((phase) => ({ phase, at: counts.subarray(phase * size, phase * size + size) }));
  const rest = counts.subarray(phases * size);
  for (const layer of [...layers.map((one) => one.at), rest])
    for (let x = 1; x < size; x++) layer[x] += layer[x - 1];
  for (const { at } of layers) for (let x = 0; x < size; x++) rest[x] = Math.max(0, rest[x] - at[x]);
  return [...layers, { phase: -1, at: rest }];
};
R.bandOrder = (phase) => {
  const bands = ["generate", "engine", "tool", "interaction", "environment", "reward"];
  const at = bands.indexOf(R.facts.phases[phase]);
  return at < 0 ? 9 + phase : at;
};

// Draw the text: row names at the left, span names where they fit, the axis, the cursor.
R.paintWords = (context, model, placed, view, inks, box, cursor, selected) => {
  const { left, top, width, height } = box;
  const x = (sec) => left + ((sec - view.from) / (view.to - view.from)) * width;
  context.font = `11px ${R.ink("sans")}`;
  context.textBaseline = "middle";
  context.fillStyle = inks.card;
  context.fillRect(0, 0, left, top + height);
  context.fillRect(0, 0, left + width, top);
  R.paintAxis(context, view, inks, box, x);
  context.save();
  context.beginPath();
  context.rect(0, top, left + width, height);
  context.clip();
  for (const item of placed.items) {
    const y = top + item.y - view.top;
    if (y + item.high < top || y > top + height) continue;
    if (item.kind === "band") {
      context.fillStyle = item.worker === R.timeline.accused ? inks.bad : inks.ink;
      context.font = `600 12px ${R.ink("sans")}`;
      context.fillText(`worker ${item.worker}`, 2, y + 17);
      context.font = `11px ${R.ink("sans")}`;
      context.fillStyle = inks.faint;
      context.fillText(R.plural(item.rows.length, "request"), 2, y + 33);
      context.fillStyle = inks.line;
      context.fillRect(0, y - 5, left + width, 1);
    } else if (item.kind === "request" && (item.high >= 12 || item.row === selected)) {
      context.fillStyle = item.row === selected ? inks.accent : inks.soft;
      context.fillText(R.cut(context, item.row.request, left - 12), 2, y + item.high / 2);
      if (item.high >= 15) R.nameSpans(context, model, item, y, x, box, null, inks);
    } else if (item.kind === "lanes") R.nameSpans(context, model, item, y, x, box, item.lanes.lane, inks);
    if (item.kind === "request" && item.row.open && x(item.row.to) > left && item.high >= 10) {
      context.fillStyle = inks.bad;
      context.textAlign = "right";
      context.fillText("unended", Math.min(x(item.row.to), left + width) - 4, y + item.high / 2);
      context.textAlign = "left";
    }
  }
  if (cursor !== null) {
    context.fillStyle = inks.ink;
    context.fillRect(Math.round(x(cursor)), top, 1, height);
  }
  context.restore();
};

R.nameSpans = (context, model, item, y, x, box, lanes, inks) => {
  for (let span = item.row.first; span < item.row.end; span++) {
    const kind = R.facts.phases[model.phase[span]];
    if (!lanes && (kind === "request" || !(model.flags[span] & (R.COUNTED | R.OPEN)))) continue;
    const from = Math.max(box.left, x(model.start[span] * model.tick_sec)),
      to = Math.min(box.left + box.width, x((model.start[span] + model.ticks[span]) * model.tick_sec));
    if (to - from < 44) continue;
    context.fillStyle = inks.words[model.phase[span]];
    const middle = lanes ? y + 4 + lanes.get(span) * R.LANE + (R.LANE - 2) / 2 : y + item.high / 2;
    const open = model.flags[span] & R.OPEN ? ": unended" : "";
    const took = R.seconds(model.ticks[span] * model.tick_sec);
    const name = `${model.events[model.event[span]]}${open}  ${took}`;
    context.fillText(R.cut(context, name, to - from - 8), from + 5, middle);
  }
};

R.cut = (context, text, width) => {
  if (context.measureText(text).width <= width) return text;
  let kept = Math.max(0, Math.floor((text.length * width) / context.measureText(text).width) - 1);
  while (kept > 0 && context.measureText(`${text.slice(0, kept)}…`).width > width) kept--;
  return kept ? `${text.slice(0, kept)}…` : "";
};

R.paintAxis = (context, view, inks, { left, top, width, height }, x) => {
  const rough = (view.to - view.from) / Math.max(2, width / 110);
  const unit = 10 ** Math.floor(Math.log10(rough));
  const every = [1, 2, 5, 10].map((times) => times * unit).find((one) => one >= rough);
  context.textAlign = "center";
  for (let sec = Math.ceil(view.from / every) * every; sec <= view.to; sec += every) {
    context.fillStyle = inks.line;
    context.globalAlpha = 0.7;
    context.fillRect(Math.round(x(sec)), top - 5, 1, height + 5);
    context.globalAlpha = 1;
    context.fillStyle = inks.faint;
    const label =
      Math.abs(sec) < every / 2
        ? "0"
        : every < 1e-3
          ? `${(sec * 1e3).toFixed(3)} ms`
          : every < 1
            ? `${sec.toFixed(Math.max(0, Math.ceil(-Math.log10(every))))} s`
            : `${Math.round(sec)} s`;
    if (x(sec) > left + 8 && x(sec) < left + width - 10) context.fillText(label, x(sec), top - 13);
  }
  context.textAlign = "left";
};
