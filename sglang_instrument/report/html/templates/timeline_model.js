// Hold the spans of a step in typed arrays, and choose which rows are shown, in which order and where.
"use strict";
R.OPEN = 1;
R.FAILED = 2;
R.COUNTED = 4; // flags of a span
R.models = new Map();
R.TURNLESS = 255;

R.loadModel = (key) => {
  if (!R.models.has(key)) R.models.set(key, R.unpack(`spans-${key}`).then(R.readModel));
  return R.models.get(key);
};

R.readModel = (buffer) => {
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const kinds = { u1: Uint8Array, u2: Uint16Array, u4: Uint32Array };
  const model = { ...header, rows: [], byRequest: new Map() };
  for (const [name, { type, at, length: size }] of Object.entries(header.columns))
    model[name] = new kinds[type](buffer, 4 + length + at, size);
  let first = 0;
  header.count.forEach((count, index) => {
    const row = {
      index,
      first,
      end: first + count,
      worker: header.worker[index],
      request: header.request[index],
      from: header.from_sec[index],
      to: header.to_sec[index],
      open: header.open[index],
      duration: header.duration_sec[index] ?? header.to_sec[index] - header.from_sec[index],
      turns: header.turns[index],
      tokens: header.response_tokens[index],
      reward: header.reward[index],
      finish: header.finish_reason[index],
      error: header.error[index],
    };
    first += count;
    model.rows.push(row);
    if (row.request !== null && !model.byRequest.has(row.request)) model.byRequest.set(row.request, row);
  });
  model.workers = [...new Set(header.worker)].sort((a, b) => a - b);
  model.total = model.start.length;
  return model;
};

// Return whether a span passes the filter.
R.wanted = (model, filter, span) =>
  (filter.event < 0 || model.event[span] === filter.event) &&
  model.ticks[span] * model.tick_sec >= filter.least &&
  !(filter.hidden & (1 << model.phase[span]));

R.isFiltering = (filter) => filter.event >= 0 || filter.least > 0 || filter.hidden !== 0;

// Return the rows with at least one span that passes the filter.
R.filterRows = (model, filter) => {
  const text = filter.text.toLowerCase();
  return model.rows.filter((row) => {
    if (filter.worker !== null && row.worker !== filter.worker) return false;
    if (row.request === null) return true;
    if (text && !row.request.toLowerCase().includes(text)) return false;
    if (!R.isFiltering(filter)) return true;
    for (let span = row.first; span < row.end; span++) if (R.wanted(model, filter, span)) return true;
    return false;
  });
};

R.sortRows = (rows, by) => {
  const value = (row) => row[by] ?? -Infinity;
  return rows.sort(
    (a, b) => (by === "from" ? a.from - b.from : value(b) - value(a)) || a.from - b.from || a.index - b.index,
  );
};

// Place the items of the timeline one below the other; heights are in screen pixels and need not be whole.
//   band: the requests of a worker counted by phase; steps: what it did outside of requests;
//   request: one row; lanes: the selected request, a lane a depth
R.BAND = 40;
R.STEPS = 8;
R.LANE = 17;
R.GAP = 12;
R.ROWS = 20; // smallest height of all requests of a worker together
R.layOut = (model, filter, size, selected, height) => {
  const kept = R.filterRows(model, filter);
  const lanes = selected && kept.includes(selected) ? R.lanesOf(model, selected) : null;
  const requests = kept.filter((row) => row.request !== null).length;
  const workers = model.workers.filter((worker) => filter.worker === null || worker === filter.worker);
  const fixed = workers.length * (R.BAND + R.STEPS + R.GAP) + (lanes ? lanes.count * R.LANE + 26 : 0);
  const fitting = Math.max(0, (height - fixed) / Math.max(1, requests));
  const least = (R.ROWS * workers.length) / Math.max(1, requests);
  const each = size === "fit" ? Math.min(18, Math.max(fitting, least)) : Number(size);
  const items = [];
  let y = 0;
  const put = (item, high) => {
    items.push({ ...item, y, high });
    y += high;
  };
  for (const worker of workers) {
    const mine = kept.filter((row) => row.worker === worker);
    put({ kind: "band", worker, rows: mine.filter((row) => row.request !== null) }, R.BAND);
    const own = mine.find((row) => row.request === null);
    if (own) put({ kind: "steps", worker, row: own }, R.STEPS);
    for (const row of R.sortRows(
      mine.filter((one) => one.request !== null),
      filter.sort,
    )) {
      put({ kind: "request", worker, row }, row === selected ? Math.max(each, 18) : each);
      if (row === selected && lanes) put({ kind: "lanes", worker, row, lanes }, lanes.count * R.LANE + 8);
    }
    y += R.GAP;
  }
  return {
    items,
    height: y,
    each,
    requests,
    of: model.rows.filter((row) => row.request !== null).length,
    filtering: R.isFiltering(filter),
  };
};

// Give each span of a request a lane: its nesting depth, or deeper where a span of that depth ran beside it.
R.lanesOf = (model, row) => {
  const order = [];
  for (let span = row.first; span < row.end; span++) order.push(span);
  order.sort((a, b) => model.start[a] - model.start[b] || model.depth[a] - model.depth[b]);
  const until = [],
    lane = new Map();
  for (const span of order) {
    let at = model.depth[span];
    while (until[at] > model.start[span]) at++;
    until[at] = model.start[span] + Math.max(1, model.ticks[span]);
    lane.set(span, at);
  }
  return { lane, count: Math.max(1, until.length) };
};

// Return what ran at one time.
R.momentOf = (model, sec) => {
  const tick = sec / model.tick_sec;
  const told = { before: 0, running: 0, done: 0, calls: 0, phases: new Map(), barrier: [], steps: [] };
  const generate = R.facts.phases.indexOf("generate"),
    engine = R.facts.phases.indexOf("engine"),
    barrier = R.facts.phases.indexOf("barrier");
  const covers = (span) => model.start[span] <= tick && tick < model.start[span] + model.ticks[span];
  for (const row of model.rows) {
    if (row.request === null) {
      for (let span = row.first; span < row.end; span++)
        if (covers(span) && model.phase[span] === barrier) {
          told.barrier.push(row.worker);
          break;
        }
      continue;
    }
    if (sec < row.from) told.before++;
    else if (sec >= row.to && !row.open) told.done++;
    else {
      told.running++;
      let deepest = null;
      for (let span = row.first; span < row.end; span++) {
        if (!(model.flags[span] & R.COUNTED) || !covers(span)) continue;
        deepest = span;
        if (model.phase[span] === generate || model.phase[span] === engine) told.calls++;
      }
      const phase = deepest === null ? -1 : model.phase[deepest];
      told.phases.set(phase, (told.phases.get(phase) || 0) + 1);
    }
  }
  return told;
};
