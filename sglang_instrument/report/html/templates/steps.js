// Show the steps of the run: a chart, the parts of one step, a table of all.
"use strict";
R.MANY_STEPS = 300; // more bars than this cannot be told apart, and take a browser seconds to draw

R.stepsChart = () => {
  const { steps, other } = R.facts;
  if (!steps.length) return "No step has a record yet.";
  const names = steps.map((one) => one.key);
  const data = [...R.phasesOfSteps(steps, names), R.intervalsOfSteps(steps, names)];
  if (other) data.push(R.stepsOfOtherRun(other));
  const chosen = names.indexOf(R.state.step);
  const shapes = chosen < 0 ? [] : [R.band(chosen - 0.5, chosen + 0.5, "accent-soft", 0.75)];
  const layout = {
    barmode: "stack",
    bargap: steps.length > 60 ? 0.1 : 0.35,
    annotations: R.findingMarks(steps),
    shapes,
    xaxis: R.stepAxis({ categoryarray: names, categoryorder: "array" }),
    yaxis: R.fromZero("seconds"),
    margin: { l: 8, r: 8, t: 30, b: 8 },
  };
  return { data, layout };
};

// One stacked series for each phase; the stack is as high as the step is long.
R.phasesOfSteps = (steps, names) => {
  const draw = steps.length > R.MANY_STEPS ? R.phaseArea : R.phaseBars;
  const { phases, colours, words } = R.facts;
  return phases.flatMap((phase, index) => {
    const y = steps.map((one) => one.shares[index] * one.duration_sec);
    if (!y.some((sec) => sec > 0)) return [];
    return [{ name: words[index], x: names, y, ...draw(steps, index, colours[index], words[index]) }];
  });
};

R.phaseArea = (steps, index, colour) => ({
  type: "scatter",
  mode: "lines",
  stackgroup: "phases",
  line: { width: 0, shape: "hvh" },
  fillcolor: colour,
  hoverinfo: "skip",
});

R.phaseBars = (steps, index, colour, word) => {
  const hatched = { fgcolor: R.ink("card"), fgopacity: 0.6, size: 6 };
  return {
    type: "bar",
    marker: {
      color: colour,
      opacity: steps.map((one) => (one.validate ? 0.45 : 1)),
      line: { width: 0 },
      pattern: { shape: steps.map((one) => (one.validate ? "/" : "")), ...hatched },
    },
    hovertemplate: steps.map((one) => {
      const whole = `<b>${R.stepName(one.key)}</b>, ${R.seconds(one.duration_sec)}`;
      return `${whole}<br>${word}: ${R.percent(one.shares[index])}<extra></extra>`;
    }),
  };
};

R.intervalsOfSteps = (steps, names) => {
  const many = steps.length > R.MANY_STEPS;
  return R.markers({
    name: "until the next step",
    x: names,
    y: steps.map((one) => one.interval_sec),
    hovertext: steps.map((one) => `next step after ${R.seconds(one.interval_sec)}`),
    marker: {
      symbol: many ? "circle" : "circle-open",
      size: many ? 3 : 7,
      color: R.ink("ink"),
      line: { width: 1.6 },
    },
  });
};

R.stepsOfOtherRun = (other) => {
  const name = R.plain(other.name);
  return R.markers({
    name,
    mode: "lines+markers",
    x: other.steps.map((one) => `${one.step}`),
    y: other.steps.map((one) => one.duration_sec),
    hovertext: other.steps.map((one) => `${name}, step ${one.step}: ${R.seconds(one.duration_sec)}`),
    line: { dash: "dot", color: R.ink("bad"), width: 1.6 },
    marker: { size: 5 },
  });
};

R.markers = (more) => ({ type: "scatter", mode: "markers", hoverinfo: "text", cliponaxis: false, ...more });

// Label the steps with findings, unless there are too many labels to read.
R.findingMarks = (steps) => {
  const accused = steps.filter((one) => one.accused);
  if (accused.length > 12) return [];
  const bad = R.ink("bad");
  const arrow = { showarrow: true, arrowhead: 0, arrowwidth: 1, ax: 0, ay: -20, arrowcolor: bad };
  return accused.map((one) => ({
    x: steps.indexOf(one),
    y: Math.max(one.duration_sec, one.interval_sec || 0),
    text: "finding",
    font: { color: bad, size: 11 },
    ...arrow,
  }));
};

R.tellSteps = (asked = null) => {
  R.$("steps-note").textContent = R.stepsNote(asked);
};

R.stepsNote = (asked) => {
  const keys = R.keys().filter(R.full);
  const others = R.facts.steps.length - keys.length;
  if (!others) return "";
  if (asked) {
    const command = `sglang-instrument report --step ${asked}`;
    return `${R.stepName(asked)} has charts only; rebuild the report with its timeline: ${command}`;
  }
  const named = keys.map(R.stepName).join(", ");
  const rest = `${R.plural(others, "other step")} ${others === 1 ? "has" : "have"} charts only`;
  return `With a timeline: ${named}. ${rest}; rebuild the report with --step N to add one.`;
};

// The parts of a ledger that are named differently from the phase whose colour they have.
R.PHASE_OF_PART = { engine: "generate", "blocked loop": "loop", "between steps": "weights" };

R.partsOfStep = ({ step }) => {
  const card = R.$("parts");
  const parts = R.facts.parts[step];
  card.hidden = !parts || !parts.rows.length;
  if (card.hidden) return;
  const shown = parts.rows.filter((row) => row.sec >= 0.001 * parts.sec);
  const rest = parts.sec - shown.reduce((sum, row) => sum + row.sec, 0);
  if (rest > 0) shown.push({ part: "shorter parts", sec: rest });
  const isKnown = (row) => row.event && row.part !== "unaccounted";
  const shade = (row) => (isKnown(row) ? R.colour(R.PHASE_OF_PART[row.part] || row.part) : R.ink("faint"));
  const bar = (row) => {
    const style = { flex: `${row.sec} 0 0`, background: shade(row) };
    return R.el("span", { style, title: `${row.part}: ${R.seconds(row.sec)}` });
  };
  const cells = (row) => [
    R.el("span", {}, R.swatch(shade(row)), " ", row.part),
    row.event && R.el("code", {}, row.event),
    row.worker ?? null,
    R.percent(row.sec / parts.sec),
    R.seconds(row.sec),
  ];
  const columns = ["part", "event", "worker", "share", "time"];
  card.querySelector("h3").textContent =
    `What the ${R.seconds(parts.sec)} of ${R.stepName(step)} were spent on, until the next step began`;
  card.querySelector(".strip").replaceChildren(...shown.map(bar));
  R.table(card.querySelector("table"), columns, shown.map(cells));
};

R.SHARES_OF_STEP = [
  ["generation", ["generate", "engine"]],
  ["tools", ["tool", "interaction"]],
  ["reward", ["reward"]],
  ["waiting", ["barrier"]],
];

// Filled when it is opened: a run may have thousands of steps.
R.allSteps = () => {
  const share = (one, phase) => one.shares[R.facts.phases.indexOf(phase)];
  const sum = (one, phases) => R.percent(phases.reduce((total, phase) => total + share(one, phase), 0));
  const link = (one) => {
    const href = R.hashOf({ section: "steps", step: one.key });
    const name = R.stepName(one.key);
    return R.full(one.key) ? R.el("a", { class: "link", href }, name) : name;
  };
  const columns = [
    ["step", link],
    ["time", (one) => R.seconds(one.duration_sec)],
    ["busy", (one) => R.seconds(one.busy_sec)],
    ["to the next", (one) => R.seconds(one.interval_sec)],
    ["slowest worker", (one) => one.slowest_worker],
    ["requests", (one) => R.count(one.requests)],
    ["tokens", (one) => R.count(one.response_tokens)],
    ["p50", (one) => R.seconds(one.p50_sec)],
    ["p99", (one) => R.seconds(one.p99_sec)],
    ["longest", (one) => R.seconds(one.max_sec)],
    ["tail", (one) => R.percent(one.tail)],
    ...R.SHARES_OF_STEP.map(([name, phases]) => [name, (one) => sum(one, phases)]),
  ];
  R.tableOf(R.$("all-steps"), columns, R.facts.steps);
};

R.phaseOf = (event) => R.facts.events[event] || "other";
