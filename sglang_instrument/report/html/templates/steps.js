// Show the steps of the run: a chart, the parts of one step, a table of all.
"use strict";
R.MANY_STEPS = 300; // more bars than this cannot be told apart, and take a browser seconds to draw

R.stepsChart = () => {
  const { steps, other } = R.facts;
  if (!steps.length) return "No step has a record yet.";
  const names = steps.map((one) => one.key);
  const all = [...steps, ...(other?.steps ?? [])];
  const time = R.timesOf(all.flatMap((one) => [one.duration_sec, one.interval_sec ?? null]));
  const data = [...R.phasesOfSteps(steps, names, time), R.intervalsOfSteps(steps, names, time)];
  if (other) data.push(R.stepsOfOtherRun(other, time));
  const chosen = names.indexOf(R.state.step);
  const shapes = chosen < 0 ? [] : [R.band(chosen - 0.5, chosen + 0.5, "accent-soft", 0.75)];
  const layout = {
    barmode: "stack",
    bargap: steps.length > 60 ? 0.1 : 0.35,
    annotations: R.findingMarks(steps, time),
    shapes,
    xaxis: R.stepAxis({ categoryarray: names, categoryorder: "array" }),
    yaxis: R.fromZero(time.name),
    margin: { l: 8, r: 8, t: 30, b: 8 },
  };
  const longest = steps.reduce((a, b) => (b.duration_sec > a.duration_sec ? b : a));
  const say =
    `Time of ${R.plural(steps.length, "step")}${other ? " of A" : ""}, split by part; ` +
    `the longest is ${R.stepName(longest.key)}: ${R.seconds(longest.duration_sec)}` +
    `${longest.unended ? " so far (unended)" : ""}.` +
    (other ? " The dashed line is the time of B’s steps." : "");
  return { data, layout, say };
};

// One stacked series for each phase; the stack is as high as the step is long.
R.phasesOfSteps = (steps, names, time) => {
  const draw = steps.length > R.MANY_STEPS ? R.phaseArea : R.phaseBars;
  return R.facts.part_names.flatMap((part) => {
    const y = time.of(steps.map((one) => R.shareOf(one, part) * one.duration_sec));
    if (!y.some((sec) => sec > 0)) return [];
    return [{ name: part, x: names, y, ...draw(steps, part, time) }];
  });
};

// The share of a part of a step: the sum over its phases.
R.shareOf = (one, part) =>
  one.shares.reduce((sum, share, at) => sum + (R.facts.parts_of_phases[at] === part ? share : 0), 0);

R.phaseArea = (steps, part) => ({
  type: "scatter",
  mode: "lines",
  stackgroup: "phases",
  line: { width: 0, shape: "hvh" },
  fillcolor: R.colour(part),
  hoverinfo: "skip",
});

R.phaseBars = (steps, part, time) => {
  const hatched = { fgcolor: R.ink("card"), fgopacity: 0.6, size: 6 };
  return {
    type: "bar",
    marker: {
      color: R.colour(part),
      opacity: steps.map((one) => (one.validate ? 0.45 : 1)),
      line: { width: 0 },
      pattern: { shape: steps.map((one) => (one.validate ? "/" : "")), ...hatched },
    },
    hovertemplate: steps.map((one) => {
      const soFar = one.unended ? " so far (unended)" : "";
      const whole = `<b>${R.stepName(one.key)}</b>, ${time.say(one.duration_sec)}${soFar}`;
      return `${whole}<br>${part}: ${R.percent(R.shareOf(one, part))}<extra></extra>`;
    }),
  };
};

R.intervalsOfSteps = (steps, names, time) => {
  const many = steps.length > Math.min(R.MANY_STEPS, R.$("chart-steps").clientWidth / 7);
  return R.markers({
    name: "until the next step",
    x: names,
    y: time.of(steps.map((one) => one.interval_sec)),
    hovertext: steps.map((one) => `next step after ${time.say(one.interval_sec)}`),
    marker: {
      symbol: many ? "circle" : "circle-open",
      size: many ? 3 : 7,
      color: R.ink("ink"),
      line: { width: many ? 0 : 1.6 },
    },
  });
};

R.stepsOfOtherRun = (other, time) =>
  R.markers({
    name: "B",
    mode: "lines+markers",
    x: other.steps.map((one) => `${one.step}`),
    y: time.of(other.steps.map((one) => one.duration_sec)),
    hovertext: other.steps.map((one) => `B, step ${one.step}: ${time.say(one.duration_sec)}`),
    line: { dash: "dash", color: R.ink("run-b"), width: 2 },
    marker: { size: 6, symbol: "diamond" },
  });

R.markers = (more) => ({ type: "scatter", mode: "markers", hoverinfo: "text", cliponaxis: false, ...more });

// Label the steps with findings, unless there are too many labels to read.
R.findingMarks = (steps, time) => {
  const accused = steps.filter((one) => one.accused);
  if (accused.length > 12) return [];
  const isRoomy = accused.length * 80 < R.$("chart-steps").clientWidth;
  const bad = R.ink("bad");
  const arrow = { showarrow: true, arrowhead: 0, arrowwidth: 1, ax: 0, ay: -20, arrowcolor: bad };
  return accused.map((one) => ({
    x: steps.indexOf(one),
    y: time.at(Math.max(one.duration_sec, one.interval_sec || 0)),
    text: isRoomy ? "finding" : "▾",
    font: { color: bad, size: 11 },
    ...arrow,
  }));
};

R.tellSteps = (asked = null) => R.$("steps-note").replaceChildren(...R.stepsNote(asked));

// The command that adds a timeline of a step to this report.
R.rebuilt = (key) => R.el("code", {}, `${R.facts.rebuild} --step ${key}`);

R.stepsNote = (asked) => {
  const keys = R.keys().filter(R.full);
  const without = R.facts.steps.filter((one) => !R.full(one.key));
  if (!without.length) return [];
  const step = asked ?? without.find((one) => !one.validate)?.key;
  const add = step ? ["; this adds a timeline of ", R.stepName(step), ": ", R.rebuilt(step)] : ["."];
  if (asked) return [`${R.stepName(asked)} has charts only`, ...add];
  const named = keys.map(R.stepName).join(", ");
  const have = without.length === 1 ? "has" : "have";
  const rest = `${R.plural(without.length, "other step")} ${have} charts only`;
  return [`With a timeline: ${named}. ${rest}`, ...add];
};

R.partsOfStep = ({ step }) => {
  const card = R.$("parts");
  const parts = R.facts.parts[step];
  card.hidden = !parts || !parts.rows.length;
  if (card.hidden) return;
  const shown = parts.rows.filter((row) => row.sec >= 0.001 * parts.sec);
  const rest = parts.sec - shown.reduce((sum, row) => sum + row.sec, 0);
  if (rest > 0) shown.push({ part: "rest", sec: rest });
  const shade = (row) => R.shade(row.part);
  const bar = (row) => {
    const style = { flex: `${row.sec} 0 0`, background: shade(row) };
    return R.el("span", { style, title: `${row.part}: ${R.seconds(row.sec)}` });
  };
  const columns = [
    ["part", (row) => row.part, (part, row) => R.el("span", {}, R.swatch(shade(row)), " ", part)],
    ["event", (row) => row.event, (event) => event && R.el("code", {}, event)],
    ["worker", (row) => row.worker],
    ["share", (row) => row.sec / parts.sec, R.percent],
    ["time", (row) => row.sec, R.alike],
  ];
  card.querySelector("h3").textContent =
    `What the ${R.seconds(parts.sec)} of ${R.stepName(step)} were spent on, until the next step began`;
  card.querySelector(".strip").replaceChildren(...shown.map(bar));
  R.tableOf(card.querySelector("table"), columns, shown);
};

R.SHARES_OF_STEP = ["engine", "tool", "interaction", "reward", "barrier"];

// Filled when it is opened: a run may have thousands of steps.
R.allSteps = () => {
  const link = (_, one) => {
    const href = R.hashOf({ section: "steps", step: one.key });
    const name = R.stepName(one.key);
    return R.full(one.key) ? R.el("a", { class: "link", href }, name) : name;
  };
  const unended = ["", (one) => (one.unended ? "unended" : null)];
  const columns = [
    ["step", (one) => one.step, link],
    ["time", (one) => one.duration_sec, R.alike],
    ...(R.facts.steps.some((one) => one.unended) ? [unended] : []),
    ["busy", (one) => one.busy_sec, R.alike],
    ["to the next", (one) => one.interval_sec, R.alike],
    ["slowest worker", (one) => one.slowest_worker],
    ["requests", (one) => one.requests, R.count],
    ["tokens", (one) => one.response_tokens, R.count],
    ["p50", (one) => one.p50_sec, R.alike],
    ["p99", (one) => one.p99_sec, R.alike],
    ["longest", (one) => one.max_sec, R.alike],
    ["stragglers", (one) => one.straggler_share, R.percent],
    ...R.SHARES_OF_STEP.map((part) => [part, (one) => R.shareOf(one, part), R.percent]),
  ];
  R.tableOf(R.$("all-steps"), columns, R.facts.steps);
};

R.phaseOf = (event) => R.facts.events[event] || "other";
