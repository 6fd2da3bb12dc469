// Fill the page: text first, then the timeline, then each chart when it is scrolled near the screen.
"use strict";

R.legend = () => {
  const { steps, part_names } = R.facts;
  const used = part_names.filter((part) => steps.some((one) => R.shareOf(one, part) > 0.0005));
  R.$("phase-legend").replaceChildren(
    ...R.legendOf(used),
    R.el("span", {}, "○ until the next step begins"),
    ...R.legendOfRuns(["bars", "dashed line"]),
  );
  R.$("cdf-legend").replaceChildren(...R.legendOfRuns(["solid line", "dashed line"]));
};

// One tab of a list is in the order of the tab key; the arrow keys go to its neighbours.
R.wireTabs = (id, change) => {
  const tabs = [...R.$(`${id}-tabs`).children];
  const choose = (tab) => {
    for (const one of tabs) {
      one.setAttribute("aria-selected", one === tab);
      one.tabIndex = one === tab ? 0 : -1;
    }
    R.$(`${id}-panel`).setAttribute("aria-labelledby", tab.id);
    change(tab.dataset.of);
  };
  R.$(`${id}-panel`).setAttribute("aria-labelledby", tabs[0].id);
  tabs.forEach((tab) => tab.addEventListener("click", () => choose(tab)));
  R.$(`${id}-tabs`).addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by) return;
    event.preventDefault();
    const next = tabs.at((tabs.indexOf(event.target) + by) % tabs.length);
    choose(next);
    next.focus();
  });
};

R.wireCharts = () => {
  const chosen = (place) =>
    place.on("plotly_click", ({ points }) => {
      const key = String(points[0].x);
      if (R.keys().includes(key)) R.go({ step: key });
      R.tellSteps(R.keys().includes(key) || key.startsWith("v") ? null : key);
    });
  R.chart("chart-steps", R.stepsChart, chosen);
  R.chart("chart-concurrency", R.concurrencyChart);
  R.chart("chart-gauges", R.gaugesChart);
  R.chart("chart-heat", R.heatChart, chosen);
  R.chart("chart-cdf", R.cdfChart);
  R.chart("chart-turns", R.turnsChart);
  R.chart("chart-counts", R.countsChart);
  R.chart("chart-lengths", R.lengthsChart);
  R.chart("chart-rewards", R.rewardsChart);
  R.chart("chart-whatif", R.whatifChart);
  document.querySelector("details.all").addEventListener("toggle", R.allSteps, { once: true });
  R.wireTabs("heat", (of) => {
    R.heatOf = of;
    R.redraw("chart-heat");
  });
  R.wireTabs("cdf", (of) => {
    R.cdfOf = of;
    R.redraw("chart-cdf");
  });
  R.$("cdf-log").addEventListener("change", () => {
    R.cdfLog = R.$("cdf-log").checked;
    R.redraw("chart-cdf");
  });
  R.themeListeners.push(() => {
    R.redraw(...R.charts.keys());
    R.partsOfStep(R.state);
  });
};

R.start = async () => {
  R.facts = JSON.parse(await R.unpackText("facts"));
  R.wireState();
  R.legend();
  R.tellSteps();
  R.$("parts").hidden = true;
  document.querySelectorAll("table:has(tbody)").forEach(R.equipStatic);
  [
    R.blameTable,
    R.percentileTable,
    R.slowestRequests,
    R.turnTable,
    R.standingStill,
    R.comparisonTable,
    R.clockTable,
  ].forEach((fill) => fill());
  R.wireTimeline();
  R.wireIcicle();
  R.wireWhatif();
  let before; // undefined: no step is shown yet, and none may be in focus
  R.onChange(async ({ step, request }) => {
    if (step !== before) {
      before = step;
      R.partsOfStep(R.state);
      R.resetIcicle();
      R.redraw("chart-steps", "chart-concurrency", "chart-gauges", "chart-cdf");
    }
    await R.showStep(step);
    R.selectRequest(request);
    R.showMoment(R.timeline.model, R.timeline.cursor);
    if (R.charts.size) return;
    performance.mark("interactive");
    document.documentElement.dataset.ready = "yes"; // read by tests: the timeline works
    R.wireCharts(); // last: decoding plotly takes longest
  });
  R.follow();
};

R.start().catch((error) => {
  R.errors.push(String(error));
  const words = `This browser could not open the charts (${error}). A browser of 2023 or later can.`;
  document.querySelector("main").prepend(R.el("p", { class: "health torn" }, words));
});
