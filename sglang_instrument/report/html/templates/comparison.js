// Compare the run with a second one, metric by metric.
"use strict";

R.comparisonTable = () => {
  if (!R.facts.other) return;
  const rows = R.facts.other.metrics;
  const at = R.logScale(rows);
  const known = (value, format) => (value === null ? "–" : format(value));
  const short = (value) => known(value, (one) => Number(one.toPrecision(4)).toLocaleString("en"));
  const fixed = (value) => known(value, (one) => one.toPrecision(4));
  const columns = [
    ["metric", (row) => row.metric],
    [R.facts.title, (row) => row.one, short],
    [R.facts.other.name, (row) => row.other, short],
    ["ratio", (row) => row.ratio, fixed],
    ["from", (row) => row.low, fixed],
    ["to", (row) => row.high, fixed],
    ["interval, drawn", null, (row) => (row.low === null ? "" : R.intervalBar(row, at))],
    ["verdict", (row) => row.verdict],
    ["steps to tell 10 %", (row) => row.needed],
  ];
  R.tableOf(
    R.$("comparison"),
    columns,
    rows,
    { classes: rows.map((row) => ({ higher: "up", lower: "down" })[row.verdict] ?? "noise") },
  );
  if (!rows.length) R.$("comparison").replaceWith("Neither run has a step.");
};

// Return a function from a ratio to percent of the bar's width: 1 is in the middle of a log scale.
R.logScale = (rows) => {
  const ends = rows.flatMap((row) => [row.low, row.high]).filter((one) => Number.isFinite(one) && one > 0);
  const reach = Math.max(0.1, ...ends.map((one) => Math.abs(Math.log(one)))) * 1.05;
  return (ratio) => {
    const log = Math.log(Math.max(ratio, 1e-9));
    return 50 + (50 * Math.max(-reach, Math.min(reach, log))) / reach;
  };
};

R.intervalBar = (row, at) => {
  const width = at(row.high) - at(row.low);
  return R.el(
    "span",
    { class: "interval" },
    R.el("s", { style: { left: "50%" } }),
    R.el("i", { style: { left: `${at(row.low)}%`, width: `${width}%` } }),
    R.el("u", { style: { left: `${at(row.ratio)}%` } }),
  );
};
