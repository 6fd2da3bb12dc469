// Show requests in flight, which workers the others waited for, and whose clock differs.
"use strict";

R.concurrencyChart = () => {
  const { step } = R.state;
  const curves = R.facts.curves[step] || [];
  const name = step ? R.stepName(step) : "";
  R.$("concurrency-title").textContent = name && `${name[0].toUpperCase()}${name.slice(1)}`;
  if (!curves.length) return "No request has a record in this step.";
  const time = R.timesOf(curves.flatMap((one) => one.at_sec));
  const last = curves.reduce((a, b) => (b.t100_sec > a.t100_sec ? b : a));
  const line = (one, index) => ({
    shape: "hv",
    width: one === last ? 2.6 : 1.3,
    color: one === last ? R.ink("bad") : R.workerColour(index, curves.length),
  });
  const curve = (one, index) => ({
    type: "scatter",
    mode: "lines",
    name: `worker ${one.worker}`,
    x: time.of(one.at_sec),
    customdata: one.at_sec.map(time.say),
    y: one.in_flight,
    line: line(one, index),
    hovertemplate: `worker ${one.worker}: %{y} in flight at %{customdata}<extra></extra>`,
  });
  const data = curves.map(curve).sort((a, b) => a.line.width - b.line.width);
  const most = Math.max(...curves.map((one) => Math.max(...one.in_flight)));
  const layout = {
    shapes: [R.band(time.at(last.t80_sec), time.at(last.t100_sec), "bad", 0.07)],
    annotations: last.t100_sec > last.t80_sec ? [R.tailMark(last, time)] : [],
    showlegend: curves.length <= 16,
    xaxis: R.fromZero(`${time.name} since the worker’s first request began`),
    yaxis: { ...R.fromZero("requests in flight"), ...R.wholeTicks(most) },
  };
  const end = `worker ${last.worker} ends last, after ${R.seconds(last.t100_sec)}`;
  const say = `Requests in flight of ${R.plural(curves.length, "worker")} in ${name}; ${end}.`;
  return { data, layout, say };
};

R.tailMark = (last, time) => {
  const wide = R.$("chart-concurrency").clientWidth > 560;
  const tail = `${R.seconds(last.t100_sec - last.t80_sec)}, ${R.percent(last.straggler_share)} of its time`;
  return {
    xref: "x",
    yref: "paper",
    x: time.at(last.t100_sec),
    y: 1,
    xanchor: "right",
    yanchor: "top",
    showarrow: false,
    align: "right",
    text: `worker ${last.worker}: the last 20 % of${wide ? " " : "<br>"}its requests run for ${tail}`,
    font: { color: R.ink("bad"), size: 12 },
  };
};

R.heatOf = "arrival_sec";
R.HEAT_NAMES = {
  arrival_sec: "Arrival at the barriers",
  caused_wait_sec: "Caused wait at the barriers",
  wait_sec: "Waiting at the barriers",
};
R.HEAT_WORDS = {
  arrival_sec: "arrived %{text} after the first",
  caused_wait_sec: "caused %{text} of waiting",
  wait_sec: "waited %{text}",
};

R.heatChart = () => {
  const heat = R.facts.heat;
  if (!heat.steps.length) return "No barrier was logged, so the log does not tell who waited for whom.";
  if (heat.workers.length < 2) return "The run has one worker, which waits for nobody.";
  const [shown, all] = [R.count(heat.steps.length), R.count(heat.of_steps)];
  if (heat.of_steps > heat.steps.length) R.$("heat-note").textContent = `The last ${shown} of ${all} steps.`;
  const x = heat.steps.map(String);
  const y = heat.workers.map((worker) => `worker ${worker}`);
  const layout = {
    height: Math.max(210, Math.min(640, 90 + 26 * y.length)),
    xaxis: R.stepAxis(),
    yaxis: { type: "category", autorange: "reversed", showgrid: false },
  };
  const of = `${R.plural(y.length, "worker")} in ${R.plural(x.length, "step")}`;
  const say = `${R.HEAT_NAMES[R.heatOf]} of ${of}.`;
  const time = R.timesOf(heat[R.heatOf].flat());
  return { data: [R.heatMap(heat, x, y, time), R.doubtMarks(heat, y)], layout, say };
};

R.heatMap = (heat, x, y, time) => ({
  type: "heatmap",
  x,
  y,
  z: heat[R.heatOf].map(time.of),
  text: heat[R.heatOf].map((row) => row.map(time.say)),
  xgap: x.length > 60 ? 0 : 2,
  ygap: y.length > 40 ? 0 : 2,
  colorscale: [
    [0, R.ink("heat-low")],
    [0.5, R.isDark() ? "#b3560f" : "#f0a35e"],
    [1, R.ink("heat-high")],
  ],
  colorbar: {
    thickness: 8,
    outlinewidth: 0,
    ticksuffix: ` ${time.unit}`,
    tickfont: { size: 11, color: R.ink("faint") },
    len: 1,
  },
  hovertemplate: `<b>step %{x}, %{y}</b><br>${R.HEAT_WORDS[R.heatOf]}<extra></extra>`,
  hoverongaps: false,
});

// Mark the steps whose barriers do not prove who waited for whom with a dot.
R.doubtMarks = (heat, y) => {
  const doubtful = heat.steps.filter((step) => heat.doubts[step]);
  const words = (step) => `not enough evidence: ${R.plain(heat.doubts[step])}`;
  return {
    type: "scatter",
    mode: "markers",
    x: doubtful.flatMap((step) => y.map(() => `${step}`)),
    y: doubtful.flatMap(() => y),
    marker: { size: 3.5, color: R.ink("soft") },
    hoverinfo: "text",
    hovertext: doubtful.flatMap((step) => y.map(() => words(step))),
  };
};

R.blameTable = () => {
  const rows = R.facts.heat.blame;
  if (rows.length < 2) return R.$("blame").closest(".card").remove();
  const most = Math.max(...rows.map((row) => row.caused_wait_sec), 1e-9);
  const meter = (row) => {
    const style = { width: `${(row.caused_wait_sec / most) * 150}px`, background: "var(--bad)" };
    return R.el("span", { class: "meter left", style });
  };
  const columns = [
    ["worker", (row) => row.worker, (worker) => `worker ${worker}`],
    ["caused wait, drawn", null, meter],
    ["caused wait", (row) => row.caused_wait_sec, R.alike],
    ["saved if it alone were faster", (row) => row.possible_saving_sec, R.alike],
    ["waited", (row) => row.wait_sec, R.alike],
    ["came last", (row) => row.times_last, (last, row) => `${last} of ${row.barriers}`],
  ];
  R.tableOf(R.$("blame"), columns, rows);
};

R.clockTable = () => {
  const rows = R.facts.clocks.filter((row) => row.barriers);
  if (!rows.length) return;
  const columns = [
    ["clock of", (row) => row.worker, (worker) => `worker ${worker}`],
    ["from the median", (row) => row.offset_sec, R.seconds],
    ["residual", (row) => row.residual_sec, R.seconds],
    ["barriers", (row) => row.barriers, R.count],
  ];
  R.tableOf(R.$("clocks"), columns, rows);
};
