// The sections of the report that are charts and tables of what the analysis answered.
"use strict";

R.stepsChart = () => {
  const { steps, phases, colours, words, other } = R.facts;
  if (!steps.length) return "No step has a record yet.";
  const names = steps.map((one) => one.key);
  const many = steps.length > 300; // bars that nobody could tell apart, and a browser would draw for seconds
  const data = phases.flatMap((phase, index) => {
    const shares = steps.map((one) => one.shares[index] * one.duration_sec);
    if (!shares.some((sec) => sec > 0)) return [];
    if (many) return [{ type: "scatter", mode: "lines", stackgroup: "phases", name: words[index], x: names, y: shares, line: { width: 0, shape: "hvh" }, fillcolor: colours[index], hoverinfo: "skip" }];
    return [{
      type: "bar", name: words[index], x: names, y: shares,
      marker: { color: colours[index], opacity: steps.map((one) => (one.validate ? 0.45 : 1)), line: { width: 0 }, pattern: { shape: steps.map((one) => (one.validate ? "/" : "")), fgcolor: R.ink("card"), fgopacity: 0.6, size: 6 } },
      hovertemplate: steps.map((one) => `<b>${R.stepName(one.key)}</b>, ${R.seconds(one.duration_sec)}<br>${words[index]}: ${R.percent(one.shares[index])}<extra></extra>`),
    }];
  });
  const marker = (more) => ({ type: "scatter", mode: "markers", hoverinfo: "text", cliponaxis: false, ...more });
  data.push(marker({
    name: "until the next step", x: names, y: steps.map((one) => one.interval_sec), hovertext: steps.map((one) => `next step after ${R.seconds(one.interval_sec)}`),
    marker: { symbol: many ? "circle" : "circle-open", size: many ? 3 : 7, color: R.ink("ink"), line: { width: 1.6 } },
  }));
  if (other) data.push(marker({
    name: R.plain(other.name), mode: "lines+markers", x: other.steps.map((one) => `${one.step}`), y: other.steps.map((one) => one.duration_sec),
    hovertext: other.steps.map((one) => `${R.plain(other.name)}, step ${one.step}: ${R.seconds(one.duration_sec)}`), line: { dash: "dot", color: R.ink("bad"), width: 1.6 }, marker: { size: 5 },
  }));
  const accused = steps.filter((one) => one.accused);
  const annotations = accused.length > 12 ? [] : accused.map((one) => ({
    x: steps.indexOf(one), y: Math.max(one.duration_sec, one.interval_sec || 0), text: "finding", showarrow: true, arrowhead: 0, arrowwidth: 1, ax: 0, ay: -20, arrowcolor: R.ink("bad"), font: { color: R.ink("bad"), size: 11 },
  }));
  const chosen = names.indexOf(R.state.step);
  const shapes = chosen < 0 ? [] : [{ type: "rect", xref: "x", yref: "paper", x0: chosen - 0.5, x1: chosen + 0.5, y0: 0, y1: 1, fillcolor: R.ink("accent-soft"), opacity: 0.75, line: { width: 0 }, layer: "below" }];
  return { data, layout: { barmode: "stack", bargap: steps.length > 60 ? 0.1 : 0.35, annotations, shapes, xaxis: { type: "category", title: "step", categoryarray: names, categoryorder: "array", nticks: 24, showgrid: false }, yaxis: { title: "seconds", rangemode: "tozero" }, margin: { l: 8, r: 8, t: 30, b: 8 } } };
};

R.tellSteps = (asked = null) => {
  const keys = R.keys().filter(R.full), left = R.facts.steps.length - keys.length;
  const all = `In full, with a timeline: ${keys.map(R.stepName).join(", ")}. `;
  R.$("steps-note").textContent = !left ? "" : asked ? `${R.stepName(asked)} is in the charts only: sglang-instrument report --step ${asked} takes it in full.` : `${all}Of ${R.plural(left, "other")} the charts tell: --step N takes one in full.`;
};

R.partsOfStep = ({ step }) => {
  const card = R.$("parts");
  const parts = R.facts.parts[step];
  card.hidden = !parts || !parts.rows.length;
  if (card.hidden) return;
  card.querySelector("h3").textContent = `What ${R.stepName(step)} of worker ${parts.worker}, which was busy longest, is made of`;
  const shade = (row, index) => (row.event === "(unaccounted)" ? R.ink("faint") : R.colour(R.phaseOf(row.event)));
  const shown = parts.rows.filter((row) => row.sec > 0);
  card.querySelector(".strip").replaceChildren(...shown.map((row) => R.el("span", { style: { flex: `${row.share} 0 0`, background: shade(row) }, title: `${row.event}: ${R.seconds(row.sec)}` })));
  const named = (row) => R.el("span", {}, R.swatch(shade(row)), " ", row.event === "(unaccounted)" ? "unaccounted" : R.el("code", {}, row.event));
  R.table(card.querySelector("table"), ["part, in the order of time", "share", "count", "time"], shown.map((row) => [named(row), R.percent(row.share), R.count(row.count), R.seconds(row.sec)]));
};
// Filled when it is opened: a run may have thousands of steps.
R.allSteps = () => {
  const shares = [["generation", ["generate", "engine"]], ["tools", ["tool", "interaction"]], ["reward", ["reward"]], ["waiting", ["barrier"]]];
  const part = (one, phases) => R.percent(phases.reduce((sum, phase) => sum + one.shares[R.facts.phases.indexOf(phase)], 0));
  const columns = ["step", "time", "busy", "to the next", "slowest worker", "requests", "tokens", "p50", "p99", "longest", "tail", ...shares.map(([name]) => name)];
  R.table(R.$("all-steps"), columns, R.facts.steps.map((one) => [
    R.full(one.key) ? R.el("a", { class: "link", href: R.hashOf({ section: "steps", step: one.key }) }, R.stepName(one.key)) : R.stepName(one.key), R.seconds(one.duration_sec), R.seconds(one.busy_sec), R.seconds(one.interval_sec), one.slowest_worker,
    R.count(one.requests), R.count(one.response_tokens), R.seconds(one.p50_sec), R.seconds(one.p99_sec), R.seconds(one.max_sec), R.percent(one.tail), ...shares.map(([, phases]) => part(one, phases)),
  ]));
};
R.phaseOf = (event) => R.facts.events[event] || "other";

R.concurrencyChart = () => {
  const { step } = R.state;
  const curves = R.facts.curves[step] || [];
  R.$("concurrency-title").textContent = step ? `${R.stepName(step)[0].toUpperCase()}${R.stepName(step).slice(1)}` : "";
  if (!curves.length) return "No request has a record in this step.";
  const last = curves.reduce((a, b) => (b.t100_sec > a.t100_sec ? b : a));
  const data = curves.map((one, index) => ({
    type: "scatter", mode: "lines", name: `worker ${one.worker}`, x: one.at_sec, y: one.in_flight, line: { shape: "hv", width: one === last ? 2.6 : 1.3, color: one === last ? R.ink("bad") : R.workerColour(index, curves.length) },
    hovertemplate: `worker ${one.worker}: %{y} in flight at %{x:.4~g} s<extra></extra>`,
  })).sort((a, b) => a.line.width - b.line.width);
  const tail = last.t100_sec - last.t80_sec;
  const shapes = [{ type: "rect", xref: "x", yref: "paper", x0: last.t80_sec, x1: last.t100_sec, y0: 0, y1: 1, fillcolor: R.ink("bad"), opacity: 0.07, line: { width: 0 }, layer: "below" }];
  const annotations = [{ xref: "x", yref: "paper", x: last.t100_sec, y: 1, xanchor: "right", yanchor: "top", showarrow: false, text: `worker ${last.worker}: the last 20 % of its requests run for ${R.seconds(tail)}, ${R.percent(last.tail)} of its time`, font: { color: R.ink("bad"), size: 12 } }];
  return { data, layout: { shapes, annotations, showlegend: curves.length <= 16, xaxis: { title: "seconds since the worker’s first request began", rangemode: "tozero" }, yaxis: { title: "requests in flight", rangemode: "tozero" } } };
};

R.heatOf = "arrival_sec";
R.heatChart = () => {
  const heat = R.facts.heat;
  if (!heat.steps.length) return "No barrier was logged: nobody can be seen to wait for anybody.";
  if (heat.of_steps > heat.steps.length) R.$("heat-note").textContent = `The last ${R.count(heat.steps.length)} of ${R.count(heat.of_steps)} steps.`;
  const x = heat.steps.map(String);
  const y = heat.workers.map((worker) => `worker ${worker}`);
  const words = { arrival_sec: "came %{z:.3~g} s after the first", blame_sec: "to blame for %{z:.3~g} s", wait_sec: "waited %{z:.3~g} s" };
  const data = [{
    type: "heatmap", x, y, z: heat[R.heatOf], xgap: x.length > 60 ? 0 : 2, ygap: y.length > 40 ? 0 : 2, colorscale: [[0, R.ink("heat-low")], [0.5, R.isDark() ? "#b3560f" : "#f0a35e"], [1, R.ink("heat-high")]],
    colorbar: { thickness: 8, outlinewidth: 0, ticksuffix: " s", tickfont: { size: 11, color: R.ink("faint") }, len: 1 }, hovertemplate: `<b>step %{x}, %{y}</b><br>${words[R.heatOf]}<extra></extra>`, hoverongaps: false,
  }];
  const doubtful = heat.steps.filter((step) => heat.doubts[step]);
  data.push({ type: "scatter", mode: "markers", x: doubtful.flatMap((step) => y.map(() => `${step}`)), y: doubtful.flatMap(() => y), marker: { size: 3.5, color: R.ink("soft") }, hoverinfo: "text", hovertext: doubtful.flatMap((step) => y.map(() => `not enough evidence: ${R.plain(heat.doubts[step])}`)) });
  return { data, layout: { height: Math.max(210, Math.min(640, 90 + 26 * y.length)), xaxis: { type: "category", title: "step", nticks: 24, showgrid: false }, yaxis: { type: "category", autorange: "reversed", showgrid: false } } };
};

R.blameTable = () => {
  const rows = R.facts.heat.blame;
  if (!rows.length) return R.$("blame").closest(".card").remove();
  const most = Math.max(...rows.map((row) => row.blame_sec), 1e-9);
  R.table(R.$("blame"), ["worker", "", "blame", "alone could save", "waited", "came last"], rows.slice(0, 32).map((row) => [
    `worker ${row.worker}`, R.el("span", { class: "meter left", style: { width: `${(row.blame_sec / most) * 260}px`, background: R.ink("bad") } }), R.seconds(row.blame_sec), R.seconds(row.gain_alone_sec), R.seconds(row.wait_sec), `${row.last} of ${row.barriers}`,
  ]));
};

R.cdfOf = "workers";
R.cdfChart = () => {
  const { cdf, other } = R.facts;
  if (!cdf.all.requests) return "No request has ended yet.";
  const line = (one, name, more) => ({ type: "scatter", mode: "lines", name: R.plain(name), x: one.sec, y: one.share, hovertemplate: `%{y:.1%} of ${R.plain(name)} within %{x:.4~g} s<extra></extra>`, ...more, line: { shape: "hv", ...more.line } });
  const groups = Object.entries(cdf[R.cdfOf]).filter(([, one]) => one.requests);
  const data = groups.map(([key, one], index) => line(one, R.cdfOf === "workers" ? `worker ${key}` : R.stepName(key), { line: { width: key === R.state.step ? 2.4 : 1.2, color: key === R.state.step ? R.ink("bad") : R.workerColour(index, groups.length) } }));
  data.push(line(cdf.all, "all requests", { line: { width: 3, color: R.ink("accent") } }));
  if (other) data.push(line(other.cdf, other.name, { line: { width: 2.4, dash: "dot", color: R.ink("bad") } }));
  R.cdfLog ??= cdf.whole[0].max_sec > 20 * cdf.whole[0].p50_sec; // a long tail would squeeze all others to the left
  R.$("cdf-log").checked = R.cdfLog;
  const log = R.cdfLog;
  return { data, layout: { showlegend: groups.length <= 16, xaxis: { title: "seconds of a request", type: log ? "log" : "linear", rangemode: "tozero" }, yaxis: { tickformat: ".0%", range: [0, 1.015] } } };
};

R.percentileTable = () => {
  const { whole, table } = R.facts.cdf;
  if (!whole.length) return R.$("percentiles").closest(".card").remove();
  const names = ["requests", "mean_sec", "p50_sec", "p90_sec", "p95_sec", "p99_sec", "p99_9_sec", "max_sec"];
  const cells = (row) => names.map((name) => (name === "requests" ? R.count(row[name]) : R.seconds(row[name])));
  const rows = [...whole.map((row) => ["all workers", ...cells(row)]), ...table.map((row) => [`worker ${row.worker}`, ...cells(row)])];
  R.table(R.$("percentiles"), ["", "requests", "mean", "p50", "p90", "p95", "p99", "p99.9", "max"], rows, ["total"]);
};
