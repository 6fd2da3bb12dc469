// Compare the run with a second one, metric by metric.
"use strict";

R.comparisonTable = () => {
  if (!R.facts.other) return;
  const rows = R.facts.other.metrics;
  const at = R.logScale(rows);
  const short = (value) => Number(value.toPrecision(4)).toLocaleString("en");
  const verdict = (row, more, less) => (row.noise ? "noise" : row.ratio > 1 ? more : less);
  const columns = [
    ["metric", (row) => row.metric],
    [R.facts.title, (row) => short(row.one)],
    [R.facts.other.name, (row) => short(row.other)],
    ["ratio", (row) => row.ratio.toFixed(3)],
    ["95 %", (row) => `${row.low.toFixed(3)} … ${row.high.toFixed(3)}`],
    ["", (row) => R.intervalBar(row, at)],
    ["so", (row) => verdict(row, "more", "less")],
  ];
  R.tableOf(
    R.$("comparison"),
    columns,
    rows,
    rows.map((row) => verdict(row, "up", "down")),
  );
  if (!rows.length) R.$("comparison").replaceWith("The two runs have no step in common.");
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
