// Draw charts with plotly when they are scrolled near the screen, in the colours of the theme.
"use strict";
R.charts = new Map();
R.plotly = null;

// plotly is more than half of the file: decode it after the page is readable.
R.loadPlotly = () => {
  R.plotly ??= R.unpackText("plotly").then((code) => {
    const script = document.createElement("script");
    script.textContent = code;
    document.head.append(script);
    return window.Plotly;
  });
  return R.plotly;
};

// Escape text from a log: plotly renders some HTML tags in labels.
R.plain = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

// `make` returns {data, layout, say: what the chart shows, in words}; or, if there is nothing to draw, a
// sentence that says why.
R.chart = (id, make, wire = null) => {
  const place = R.$(id);
  if (!place) return;
  R.charts.set(id, { place, make, wire, drawn: false, wired: false });
  R.near ??= new IntersectionObserver(
    (seen) => seen.filter((one) => one.isIntersecting).forEach((one) => R.draw(one.target.id)),
    { rootMargin: "500px" },
  );
  R.near.observe(place);
};

// Draw one chart at a time in one element; a call during a drawing redraws the latest state after it.
R.draw = (id) => {
  const chart = R.charts.get(id);
  chart.drawn = true;
  if (chart.waiting) return chart.last;
  chart.waiting = true;
  const before = (chart.last ?? Promise.resolve()).catch(() => null);
  chart.last = before.then(() => {
    chart.waiting = false;
    return R.drawNow(chart);
  });
  return chart.last;
};

R.drawNow = async (chart) => {
  const made = chart.make();
  chart.place.classList.toggle("empty", typeof made === "string");
  if (typeof made === "string") {
    chart.place.removeAttribute("role");
    chart.place.removeAttribute("aria-label");
    if (window.Plotly && chart.wired) {
      window.Plotly.purge(chart.place);
      chart.wired = false;
    }
    chart.place.textContent = made;
    return;
  }
  const Plotly = await R.loadPlotly();
  if (!chart.wired) chart.place.replaceChildren();
  // The element is as high as its chart: a chart that is higher would cover the next card.
  if (made.layout.height) chart.place.style.height = `${made.layout.height}px`;
  chart.place.setAttribute("role", "img");
  chart.place.setAttribute("aria-label", made.say);
  await Plotly.react(chart.place, made.data, R.layout(made.layout), {
    displayModeBar: false,
    responsive: true,
    showTips: false,
  });
  if (!chart.wired && chart.wire) chart.wire(chart.place);
  chart.wired = true;
};
R.redraw = (...ids) => ids.filter((id) => R.charts.get(id)?.drawn).forEach(R.draw);
R.drawAll = () => Promise.all([...R.charts.keys()].map(R.draw));

R.axis = (more = {}) => ({
  gridcolor: R.ink("grid"),
  zerolinecolor: R.ink("line"),
  linecolor: R.ink("line"),
  tickfont: { color: R.ink("faint"), size: 11.5 },
  automargin: true,
  fixedrange: false,
  ...more,
  title: { text: more.title || "", font: { color: R.ink("soft"), size: 12 }, standoff: 8 },
});

R.layout = ({ xaxis = {}, yaxis = {}, yaxis2, ...more } = {}) => ({
  font: { family: R.ink("sans"), size: 12, color: R.ink("soft") },
  paper_bgcolor: "rgba(0,0,0,0)",
  plot_bgcolor: "rgba(0,0,0,0)",
  margin: { l: 8, r: 8, t: 10, b: 8 },
  hoverlabel: {
    font: { family: R.ink("sans"), size: 12, color: R.ink("paper") },
    bgcolor: R.ink("ink"),
    bordercolor: R.ink("ink"),
  },
  legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, font: { size: 11.5 }, itemclick: "toggle" },
  showlegend: false,
  hovermode: "closest",
  dragmode: "zoom",
  ...more,
  xaxis: R.axis(xaxis),
  yaxis: R.axis(yaxis),
  ...(yaxis2 ? { yaxis2: R.axis(yaxis2) } : {}),
});

R.fromZero = (title) => ({ title, rangemode: "tozero" });
// Small numbers of things have no ticks between them.
R.wholeTicks = (most) => (most < 6 ? { dtick: 1 } : {});
// As many ticks as a screen has room for, so that no label is turned.
R.stepAxis = (more = {}) => {
  const nticks = Math.max(4, Math.min(24, Math.round(innerWidth / 55)));
  return { type: "category", title: "step", nticks, tickangle: 0, showgrid: false, ...more };
};
// A tick for each row of a short list; plotly's own choice for a long one.
R.eachOf = (rows, most) => (rows.length < most ? 1 : undefined);
// A coloured band over the whole height of a chart, from one x to another.
R.band = (x0, x1, ink, opacity) => {
  const place = { type: "rect", xref: "x", yref: "paper", x0, x1, y0: 0, y1: 1, layer: "below" };
  return { ...place, fillcolor: R.ink(ink), opacity, line: { width: 0 } };
};

// Colour workers by shades of one hue; the other hues belong to phases.
R.workerColour = (index, of) => {
  const light = R.isDark()
    ? 45 + (35 * index) / Math.max(1, of - 1)
    : 30 + (38 * index) / Math.max(1, of - 1);
  return `hsl(${205 + (70 * index) / Math.max(1, of - 1)} 32% ${light}%)`;
};
