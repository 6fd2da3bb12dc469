// Compare the run with a second one, metric by metric.
"use strict";

R.comparisonTable = () => {
  if (!R.facts.other) return;
  const rows = R.facts.other.metrics;
  const at = R.logScale(rows);
  const columns = [
    ["metric", (row) => row.metric],
    ["of", (row) => row.unit, (_, row) => row.of],
    ["A", (row) => row.a_mean, R.valueOf],
    ["B", (row) => row.b_mean, R.valueOf],
    ["B / A", (row) => row.ratio, R.ratio],
    ["interval from", (row) => row.ratio_at_least, R.ratio],
    ["to", (row) => row.ratio_at_most, R.ratio],
    ["interval, drawn", null, (row) => (row.ratio_at_least === null ? "" : R.intervalBar(row, at))],
    ["verdict", (row) => row.verdict],
    ["steps needed", (row) => row.steps_needed, R.count],
  ];
  const classes = rows.map((row) => ({ higher: "told", lower: "told" })[row.verdict] ?? "noise");
  R.tableOf(R.$("comparison"), columns, rows, { classes });
  if (!rows.length) R.$("comparison").replaceWith("Neither run has a step.");
};

R.ratio = (value) => (value >= 999.5 ? R.count(value) : R.number(value));
R.valueOf = (value, row) => {
  if (R.isNone(value)) return R.none;
  if (row.unit === "share") return R.percent(value);
  if (row.unit.startsWith("s ")) return R.seconds(value);
  return Number(value.toPrecision(3)).toLocaleString("en");
};

// Name both runs with the marks that each has in a chart, such as "bars"; of one run, nothing.
R.legendOfRuns = (marks) =>
  R.facts.runs.map((name, at) => {
    const run = "AB"[at];
    const line = marks[at].endsWith("line") && R.el("i", { class: `line ${run.toLowerCase()}` });
    return R.el("span", { class: "run" }, line || null, `${run}: ${name} (${marks[at]})`);
  });

// Return a function from a ratio to percent of the bar's width: 1 is in the middle of a log scale, which ends
// at ratios of 5, so that one extreme metric hides no other.
R.logScale = (rows) => {
  const bounds = rows.flatMap((row) => [row.ratio_at_least, row.ratio_at_most]);
  const ends = bounds.filter((ratio) => Number.isFinite(ratio) && ratio > 0);
  const reach = Math.min(Math.log(5), Math.max(0.1, ...ends.map((one) => Math.abs(Math.log(one)))) * 1.05);
  return (ratio) => {
    const log = Math.log(Math.max(ratio, 1e-9));
    return 50 + (50 * Math.max(-reach, Math.min(reach, log))) / reach;
  };
};

R.intervalBar = (row, at) => {
  const width = at(row.ratio_at_most) - at(row.ratio_at_least);
  return R.el(
    "span",
    { class: "interval" },
    R.el("s", { style: { left: "50%" } }),
    R.el("i", { style: { left: `${at(row.ratio_at_least)}%`, width: `${width}%` } }),
    R.el("u", { style: { left: `${at(row.ratio)}%` } }),
  );
};
