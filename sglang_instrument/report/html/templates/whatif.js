// Show the estimates that the analysis computed for each slider position; only sums are computed here.
"use strict";
R.whatifAt = { max_tokens: 0, max_turns: 0, oversample: 0 };

R.whatifCell = () => {
  const { max_turns, oversample, cells } = R.facts.whatif;
  const at = R.whatifAt;
  return cells[(at.max_tokens * max_turns.length + at.max_turns) * oversample.length + at.oversample];
};

R.wireWhatif = () => {
  const facts = R.facts.whatif;
  const sliders = {
    max_tokens: ["Max tokens of a response", (value) => (value === null ? "as recorded" : R.count(value))],
    max_turns: ["Max turns of a request", (value) => (value === null ? "as recorded" : R.count(value))],
    oversample: [
      "Over-sampling: requests started beyond those needed",
      (value) => (value === null ? "none" : `+${Math.round(value * 100)} %`),
    ],
  };
  if (!facts.steps.length) {
    R.$("sliders").replaceChildren(
      R.el("span", { class: "muted" }, "No training step has requests."),
    );
    return;
  }
  const made = Object.entries(sliders).map(([name, [title, word]]) => R.whatifSlider(name, title, word));
  R.$("sliders").replaceChildren(...made);
  const items = R.whatifAssumptions(facts).map((words) => R.el("li", {}, ...[words].flat()));
  R.$("assumptions").replaceChildren(...items);
  R.whatifOutcome();
};

R.whatifAssumptions = (facts) => {
  const assumed = facts.assumptions;
  if (!facts.workers) return assumed;
  const some_of = `${facts.steps.length} of ${facts.of_steps} steps`;
  const steps = facts.steps.length === facts.of_steps ? "each step" : some_of;
  const some = `${facts.workers === 1 ? "busiest worker" : `${facts.workers} busiest workers`} of ${steps}`;
  const all = R.el("code", {}, R.facts.whatif_command);
  return [...assumed, [`Computed for the ${some}, to be fast; `, all, " computes all."]];
};

R.whatifSlider = (name, title, word) => {
  const values = R.facts.whatif[name];
  const told = R.el("b", {}, word(values[0]));
  const range = { min: 0, max: values.length - 1, value: 0, step: 1, disabled: values.length < 2 };
  const slider = R.el("input", { type: "range", id: `whatif-${name}`, ...range });
  slider.addEventListener("input", () => {
    R.whatifAt[name] = Number(slider.value);
    told.textContent = word(values[slider.value]);
    R.whatifOutcome();
    R.redraw("chart-whatif");
  });
  return R.el("label", {}, title, told, slider);
};

R.whatifOutcome = () => {
  const facts = R.facts.whatif;
  const cell = R.whatifCell();
  const sum = (values) => values.reduce((a, b) => a + (b || 0), 0);
  const was = sum(facts.recorded_sec),
    now = sum(cell.predicted_sec);
  const shown = (title, value, cls) =>
    R.el("div", {}, R.el("small", {}, title), R.el("b", { class: cls || null }, value));
  const saved = was ? 1 - now / was : 0;
  const tiles = [
    shown("recorded, without waiting", R.seconds(was)),
    shown("predicted", R.seconds(now)),
    shown(saved < -1e-9 ? "longer by" : "saved", R.percent(Math.abs(saved)), saved > 0.005 ? "better" : null),
    shown("ended early", `${R.count(cell.ended_early)} of ${R.count(cell.requests)}`),
  ];
  if (cell.mean_reward !== null)
    tiles.push(
      shown("mean reward", R.number(cell.mean_reward)),
      shown("of those", R.number(cell.ended_early_reward)),
    );
  R.$("outcome").replaceChildren(...tiles);
};

R.whatifChart = () => {
  const facts = R.facts.whatif;
  if (!facts.steps.length) return "Nothing to draw.";
  const x = facts.steps.map(String);
  const time = R.timesOf([...facts.recorded_sec, ...R.whatifCell().predicted_sec]);
  const bar = (name, y, marker) => ({
    type: "bar",
    name,
    x,
    y: time.of(y),
    customdata: y.map(time.say),
    marker,
    hovertemplate: `step %{x}, ${name}: %{customdata}<extra></extra>`,
  });
  const soft = R.ink("soft");
  const data = [
    bar("recorded", facts.recorded_sec, { color: R.ink("hover"), line: { color: soft, width: 1.2 } }),
    bar("predicted", R.whatifCell().predicted_sec, { color: soft }),
  ];
  const axes = { xaxis: R.stepAxis(), yaxis: R.fromZero(time.name) };
  const say = `Recorded and predicted time of ${R.plural(x.length, "step")}.`;
  return { data, layout: { barmode: "overlay", bargap: 0.35, showlegend: true, ...axes }, say };
};
