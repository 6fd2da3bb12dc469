// Show how full the schedulers were and what the GPUs did, above what the step was spent on at that time.
"use strict";

R.GAUGES = {
  running: { name: "running requests", ink: "part-engine", axis: "y", dash: "solid" },
  waiting: { name: "waiting requests", ink: "bad", axis: "y", dash: "solid" },
  kv_cache: { name: "key-value cache", ink: "part-weights", axis: "y2", dash: "dot" },
  gpus_busy: { name: "GPUs busy", ink: "part-preprocess", axis: "y2", dash: "dash" },
};

R.gaugesChart = () => {
  const { step } = R.state;
  const gauges = R.facts.gauges[step];
  R.$("gauges-note").textContent = "";
  if (!gauges) return "No scheduler logged in this step how full it was.";
  const time = R.timesOf([gauges.duration_sec]);
  const names = Object.keys(R.GAUGES).filter((name) => gauges.lines[name]);
  const isShare = (name) => R.GAUGES[name].axis === "y2";
  const data = [
    ...names.map((name) => R.gaugeLine(name, gauges.lines[name], time)),
    ...R.pathBars(gauges.path, time),
  ];
  const below = gauges.path.length > 0;
  const layout = {
    showlegend: true,
    barmode: "overlay",
    xaxis: {
      title: `${time.name} since the step began`,
      range: [0, time.at(gauges.duration_sec)],
      anchor: below ? "y3" : "y",
    },
    yaxis: { ...R.fromZero("requests"), domain: [below ? 0.2 : 0, 1] },
    yaxis3: R.axis({ domain: [0, 0.1], showgrid: false, showticklabels: false, fixedrange: true }),
    ...(names.some(isShare) ? { yaxis2: R.shareAxis(below) } : {}),
  };
  if (below) {
    const whose = `worker ${gauges.worker}, which ended last`;
    R.$("gauges-note").textContent = `The strip below: what ${whose}, was spent on at that time.`;
  }
  const most = (name) => Math.max(...gauges.lines[name].values.filter((one) => one !== null));
  const told = names.map((name) => {
    const value = isShare(name) ? R.percent(most(name)) : R.count(Math.round(most(name)));
    return `${R.GAUGES[name].name} up to ${value}`;
  });
  return { data, layout, say: `${R.stepName(step)}, second by second: ${told.join(", ")}.` };
};

R.gaugeLine = (name, line, time) => {
  const { name: label, ink, axis, dash } = R.GAUGES[name];
  const value = axis === "y2" ? "%{y:.0%}" : "%{y:.3~g}";
  return {
    type: "scatter",
    mode: line.at_sec.length > 60 ? "lines" : "lines+markers",
    name: label,
    x: time.of(line.at_sec),
    y: line.values,
    customdata: line.at_sec.map(time.say),
    yaxis: axis,
    connectgaps: false,
    line: { color: R.ink(ink), width: 1.8, dash },
    marker: { color: R.ink(ink), size: 4 },
    hovertemplate: `${label}: ${value} at %{customdata}<extra></extra>`,
  };
};

R.shareAxis = (below) => ({
  title: "share",
  overlaying: "y",
  side: "right",
  range: [0, 1.02],
  tickvals: [0, 0.25, 0.5, 0.75, 1],
  tickformat: ".0%",
  showgrid: false,
  domain: [below ? 0.2 : 0, 1],
});

// A bar for each piece of the path; a series for each part of the step's time.
R.pathBars = (path, time) => {
  const parts = new Map();
  for (const piece of path) {
    const part = R.partOf(piece[0]);
    parts.set(part, [...(parts.get(part) ?? []), piece]);
  }
  return [...parts].map(([part, pieces]) => ({
    type: "bar",
    orientation: "h",
    name: part,
    showlegend: false,
    yaxis: "y3",
    y: pieces.map(() => ""),
    base: pieces.map(([, from]) => time.at(from)),
    x: pieces.map(([, from, to]) => time.at(to - from)),
    customdata: pieces.map(([, from, to]) => time.say(to - from)),
    width: 1,
    marker: { color: R.colour(part), line: { width: 0 } },
    hovertemplate: `${R.plain(part)}: %{customdata}<extra></extra>`,
  }));
};
