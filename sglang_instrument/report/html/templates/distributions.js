// Draw the distributions of requests' durations, turns, lengths and rewards.
"use strict";

R.cdfOf = "workers";
R.cdfChart = () => {
  const { cdf, other } = R.facts;
  if (!cdf.all.requests) return "No request has ended yet.";
  const bad = R.ink("bad");
  const time = R.timesOf([...cdf.all.sec, ...(other?.cdf.sec ?? [])]);
  const groups = Object.entries(cdf[R.cdfOf]).filter(([, one]) => one.requests);
  const data = groups.map(([key, one], index) => {
    const isChosen = key === R.state.step;
    const colour = isChosen ? bad : R.workerColour(index, groups.length);
    const name = R.cdfOf === "workers" ? `worker ${key}` : R.stepName(key);
    return R.cdfLine(time, one, name, { width: isChosen ? 2.4 : 1.2, color: colour });
  });
  const all = (mark) => (other ? `${mark}: all requests` : "all requests");
  data.push(R.cdfLine(time, cdf.all, all("A"), { width: 3, color: R.ink("ink") }));
  const dashed = { width: 3, dash: "dash", color: R.ink("run-b") };
  if (other) data.push(R.cdfLine(time, other.cdf, all("B"), dashed));
  R.cdfLog ??= cdf.whole[0].max_sec > 20 * cdf.whole[0].p50_sec; // a long tail squeezes a linear axis
  R.$("cdf-log").checked = R.cdfLog;
  const layout = {
    showlegend: groups.length <= 16,
    xaxis: { ...R.fromZero(`${time.name} of a request`), type: R.cdfLog ? "log" : "linear" },
    yaxis: { tickformat: ".0%", range: [0, 1.015] },
  };
  const percentiles = (row) => `half after ${R.seconds(row.p50_sec)}, 99 % after ${R.seconds(row.p99_sec)}`;
  const ofOther = other?.whole.length ? `; of B ${percentiles(other.whole[0])}` : "";
  const say =
    `The share of ${R.plural(cdf.all.requests, "request")} done after each time: ` +
    `${percentiles(cdf.whole[0])}${ofOther}.`;
  return { data, layout, say };
};

R.cdfLine = (time, one, name, line) => ({
  type: "scatter",
  mode: "lines",
  name: R.plain(name),
  x: time.of(one.sec),
  customdata: one.sec.map(time.say),
  y: one.share,
  line: { shape: "hv", ...line },
  hovertemplate: `%{y:.1%} of ${R.plain(name)} within %{customdata}<extra></extra>`,
});

R.percentileTable = () => {
  const { whole, table } = R.facts.cdf;
  if (!whole.length) return R.$("percentiles").closest(".card").remove();
  const others = R.facts.other?.whole ?? [];
  const ofA = R.facts.other ? "A: " : "";
  const rows = [
    ...whole.map((row) => ({ ...row, name: `${ofA}all workers` })),
    ...others.map((row) => ({ ...row, name: "B: all workers" })),
    ...table.map((row) => ({ ...row, name: `${ofA}worker ${row.worker}` })),
  ];
  const columns = [
    ["of", (row) => row.name],
    ["requests", (row) => row.requests, R.count],
    ["mean", (row) => row.mean_sec, R.alike],
    ["p50", (row) => row.p50_sec, R.alike],
    ["p90", (row) => row.p90_sec, R.alike],
    ["p95", (row) => row.p95_sec, R.alike],
    ["p99", (row) => row.p99_sec, R.alike],
    ["p99.9", (row) => row.p99_9_sec, R.alike],
    ["max", (row) => row.max_sec, R.alike],
  ];
  R.tableOf(R.$("percentiles"), columns, rows, { classes: ["total", others.length ? "total" : null] });
};

R.turnsChart = () => {
  const rows = R.facts.turns.turns;
  if (!rows.length) return "No turn was logged.";
  const colour = R.colour("generate");
  const time = R.timesOf(rows.flatMap((row) => [row.engine_p50_sec, row.engine_p99_sec]));
  const series = (name, field, more) => ({
    name,
    x: rows.map((row) => row.turn + 1),
    y: time.of(rows.map((row) => row[field])),
    customdata: rows.map((row) => time.say(row[field])),
    hovertemplate: `turn %{x}: ${name} %{customdata}<extra></extra>`,
    ...more,
  });
  const dash = { symbol: "line-ew-open", size: 16, color: R.ink("ink"), line: { width: 2 } };
  const data = [
    series("median", "engine_p50_sec", { type: "bar", marker: { color: colour } }),
    series("p99", "engine_p99_sec", { type: "scatter", mode: "markers", marker: dash, cliponaxis: false }),
  ];
  const layout = {
    bargap: 0.35,
    showlegend: true,
    xaxis: { title: "turn", dtick: R.eachOf(rows, 20), showgrid: false },
    yaxis: R.fromZero(time.name),
  };
  const say = `Median and p99 of the engine's time of each of ${R.plural(rows.length, "turn")}.`;
  return { data, layout, say };
};

R.countsChart = () => {
  const rows = R.facts.turns.counts;
  if (!rows.length) return "The number of turns was not logged.";
  const bars = {
    type: "bar",
    x: rows.map((row) => row.turns),
    y: rows.map((row) => row.requests),
    marker: { color: R.ink("soft"), opacity: 0.85 },
    customdata: rows.map((row) => [R.percent(row.share), R.seconds(row.mean_sec)]),
    hovertemplate: "%{x} turns: %{y:,} requests, %{customdata[0]}<br>mean %{customdata[1]}<extra></extra>",
  };
  const layout = {
    bargap: 0.35,
    xaxis: { title: "turns of a request", dtick: R.eachOf(rows, 20), showgrid: false },
    yaxis: R.fromZero("requests"),
  };
  return { data: [bars], layout, say: "How many requests took one turn, two turns, and so on." };
};

R.turnTable = () => {
  const rows = R.facts.turns.turns;
  if (!rows.length) return R.$("turn-table").closest(".card").remove();
  const columns = [
    ["turn", (row) => row.turn + 1],
    ["requests", (row) => row.requests, R.count],
    ["engine, all", (row) => row.engine_sec, R.alike],
    ["median", (row) => row.engine_p50_sec, R.alike],
    ["p99", (row) => row.engine_p99_sec, R.alike],
    ["tool, all", (row) => row.tool_sec, R.alike],
    ["interaction, all", (row) => row.interaction_sec, R.alike],
    ["tokens", (row) => row.response_tokens, R.count],
  ];
  R.tableOf(R.$("turn-table"), columns, rows);
};

R.lengthsChart = () => {
  const rows = R.facts.lengths.steps;
  if (!rows.length) return "Lengths of responses were not logged.";
  const line = (name, field, width, dash) => ({
    type: "scatter",
    mode: rows.length < 60 ? "lines+markers" : "lines",
    name,
    x: rows.map((row) => row.step),
    y: rows.map((row) => row[field]),
    line: { width, dash, color: R.ink("soft") },
    marker: { size: 5 },
    hovertemplate: `step %{x}: ${name} %{y:,.0f} tokens<extra></extra>`,
  });
  const others = [line("longest", "max_tokens", 1.4, "dot"), line("p95", "p95_tokens", 1.8, "dash")];
  const data = [...others, line("mean", "mean_tokens", 2.6)];
  const xaxis = { title: "step", dtick: R.eachOf(rows, 12) };
  const say = `Longest, p95 and mean response in tokens, of ${R.plural(rows.length, "step")}.`;
  return { data, layout: { showlegend: true, xaxis, yaxis: R.fromZero("tokens") }, say };
};

R.rewardsChart = () => {
  const rows = R.facts.lengths.deciles;
  if (!rows.length) return "No rewards were logged.";
  const colour = R.colour("reward");
  const intervals = {
    type: "data",
    symmetric: false,
    array: rows.map((row) => row.reward_at_most - row.reward),
    arrayminus: rows.map((row) => row.reward - row.reward_at_least),
    color: colour,
    thickness: 1.2,
    width: 3,
  };
  const line = {
    type: "scatter",
    mode: "lines+markers",
    x: rows.map((row) => row.decile),
    y: rows.map((row) => row.reward),
    line: { color: colour, width: 2.4 },
    marker: { size: 7 },
    error_y: intervals,
    customdata: rows.map((row) => [row.from_tokens, row.to_tokens, R.seconds(row.mean_sec)]),
    hovertemplate:
      "%{customdata[0]:,} to %{customdata[1]:,} tokens, %{customdata[2]} on average" +
      "<br>mean reward %{y:.3f}<extra></extra>",
  };
  const xaxis = { title: "tenth of the requests, the shortest first", dtick: 1, showgrid: false };
  const say = "Mean reward of each tenth of the requests, the shortest responses first.";
  return { data: [line], layout: { xaxis, yaxis: R.fromZero("mean reward") }, say };
};
