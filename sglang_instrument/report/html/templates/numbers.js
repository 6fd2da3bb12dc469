// Write numbers with their units for people.
"use strict";

R.isNone = (value) => value === null || value === undefined;
R.none = "–";
R.seconds = (value) => {
  if (value === null || value === undefined || Number.isNaN(value)) return R.none;
  const size = Math.abs(value);
  if (size >= 1) {
    const digits = size >= 100 ? 0 : size >= 10 ? 1 : 2;
    const fixed = { minimumFractionDigits: digits, maximumFractionDigits: digits };
    return `${value.toLocaleString("en", fixed)} s`;
  }
  if (size >= 1e-3) return `${(value * 1e3).toFixed(size >= 1e-2 ? 0 : 1)} ms`;
  return value ? `${(value * 1e6).toFixed(0)} us` : "0 s";
};

R.UNITS = [
  [1, "s", "seconds"],
  [1e-3, "ms", "milliseconds"],
  [1e-6, "us", "microseconds"],
];
R.sizesOf = (values) => values.filter((one) => one && Number.isFinite(one)).map(Math.abs);

// Give times that stand beside one another one unit and one precision, by the rules of cli/columns.py. The
// unit fits all times `beside` them; `fine` times differ much, and the smallest ones can be read, too. Of the
// result, `of` scales times for a chart, `at` scales one, and `say` writes one.
R.timesOf = (values, { beside = values, fine = true } = {}) => {
  const most = R.sizesOf(beside).reduce((a, b) => Math.max(a, b), 0) || 1;
  const [scale, unit, name] = R.UNITS.find((one) => most >= 0.1 * one[0]) ?? R.UNITS.at(-1);
  const sizes = R.sizesOf(values).map((one) => one / scale);
  const largest = sizes.reduce((a, b) => Math.max(a, b), 0);
  const usual = [1e4, 10, 1].findIndex((limit) => largest >= limit);
  const places = Math.ceil(-Math.log10(sizes.reduce((a, b) => Math.min(a, b), 1)));
  const digits = Math.max(usual < 0 ? 3 : usual, fine ? Math.min(2, places) : 0);
  const fixed = { minimumFractionDigits: digits, maximumFractionDigits: digits };
  const least = 10 ** -digits;
  const text = (size) =>
    size && Math.abs(size) < least / 2
      ? `${size < 0 ? "-" : ""}<${least.toFixed(digits)}`
      : size.toLocaleString("en", fixed);
  const known = (value) => !R.isNone(value) && !Number.isNaN(value);
  return {
    name,
    of: (times) => times.map((one) => (known(one) ? one / scale : null)),
    at: (one) => one / scale,
    say: (one) => (known(one) ? `${text(one / scale)} ${unit}` : R.none),
    unit,
  };
};

R.percent = (share) => {
  if (share === null || share === undefined || Number.isNaN(share)) return R.none;
  const value = share * 100;
  if (value > 0 && value < 0.05) return "<0.1 %";
  return `${value.toFixed(Math.abs(value) >= 10 || !value ? 0 : 1)} %`;
};
R.seconds.unit = " (s)"; // in the headings of exported tables
R.percent.unit = " (share)";

R.count = (value) =>
  value === null || value === undefined ? R.none : Math.round(value).toLocaleString("en");
R.number = (value, digits = 3) => (value === null || value === undefined ? R.none : value.toFixed(digits));
R.plural = (count, noun) => `${R.count(count)} ${noun}${count === 1 ? "" : "s"}`;
