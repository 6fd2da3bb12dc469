// Keep the step and the request in focus in the page's address, so that links and reloads restore them:
//   #section   #step=67   #step=v4 (a validation)   #step=67&request=ID
"use strict";
R.state = { section: null, step: null, request: null };
R.listeners = [];
R.onChange = (listener) => R.listeners.push(listener);

R.readHash = () => {
  const found = { section: null, step: null, request: null };
  for (const part of location.hash.slice(1).split("&").filter(Boolean)) {
    const at = part.indexOf("=");
    const name = at < 0 ? "section" : part.slice(0, at);
    let value = at < 0 ? part : part.slice(at + 1);
    try {
      value = decodeURIComponent(value);
    } catch (refused) {
      /* not valid percent-encoding: use the text as it is */
    }
    if (name in found) found[name] = value;
  }
  return found;
};

R.hashOf = ({ section, step, request }) => {
  const parts = [
    section,
    step && `step=${encodeURIComponent(step)}`,
    request !== null && request !== undefined && `request=${encodeURIComponent(request)}`,
  ];
  return `#${parts.filter(Boolean).join("&")}`;
};

// Change the focus without scrolling, unless a section is given.
R.go = (change, scroll = null) => {
  const next = { ...R.state, ...change };
  if (change.step && change.step !== R.state.step && !("request" in change)) next.request = null;
  R.state = next;
  history.replaceState(null, "", R.hashOf(next));
  R.listeners.forEach((listener) => listener(R.state));
  if (scroll) R.$(scroll)?.scrollIntoView();
};

R.follow = () => {
  const found = R.readHash();
  const steps = R.keys();
  const step = steps.includes(found.step)
    ? found.step
    : R.stepOfRequest(found.request) || R.state.step || R.firstStep();
  R.state = { section: found.section, step, request: found.request };
  R.listeners.forEach((listener) => listener(R.state));
  const place = found.section || (found.request !== null ? "inspector" : found.step ? "timeline" : null);
  if (place) requestAnimationFrame(() => R.$(place)?.scrollIntoView({ behavior: "instant" }));
};

R.keys = () => Object.keys(R.facts.curves);
R.full = (key) => R.$(`spans-${key}`) !== null;
R.stepOfRequest = (request) =>
  R.facts.slowest.find((one) => one.request_id === request && R.full(one.key))?.key;
R.firstStep = () => {
  const keys = R.keys();
  const slowest = R.facts.steps
    .filter((one) => keys.includes(one.key))
    .sort((a, b) => b.accused - a.accused || a.validate - b.validate || b.duration_sec - a.duration_sec)[0];
  const wanted = R.facts.chain?.key;
  return keys.includes(wanted) ? wanted : (slowest?.key ?? null);
};

R.wireState = () => {
  const picker = R.$("step-picker");
  const keys = R.keys();
  picker.replaceChildren(...keys.map((key) => R.el("option", { value: key }, R.stepName(key))));
  if (!keys.length) picker.disabled = true;
  picker.addEventListener("change", () => R.go({ step: picker.value }));
  R.onChange(({ step }) => {
    if (step) picker.value = step;
  });
  addEventListener("hashchange", R.follow);
  R.wireTheme();
  R.wireRail();
};

R.isDark = () => document.documentElement.dataset.theme === "dark";
R.themeListeners = [];
R.setTheme = (theme) => {
  document.documentElement.dataset.theme = theme;
  R.themeListeners.forEach((listener) => listener());
};
R.wireTheme = () => {
  const system = matchMedia("(prefers-color-scheme: dark)");
  let chosen = document.documentElement.dataset.theme;
  if (!chosen) R.setTheme(system.matches ? "dark" : "light");
  system.addEventListener("change", () => chosen || R.setTheme(system.matches ? "dark" : "light"));
  R.$("theme").addEventListener("click", () => {
    chosen = R.isDark() ? "light" : "dark";
    try {
      localStorage.setItem("sglang-instrument-theme", chosen);
    } catch (refused) {
      /* the browser gives this file no storage */
    }
    R.setTheme(chosen);
  });
  let before = null;
  addEventListener("beforeprint", () => {
    before = document.documentElement.dataset.theme;
    R.setTheme("light");
    R.drawAll();
  });
  addEventListener("afterprint", () => before && R.setTheme(before));
  R.$("print").addEventListener("click", async () => {
    await R.drawAll();
    print();
  });
};

R.wireRail = () => {
  const links = [...document.querySelectorAll(".rail nav a")];
  const sections = links.map((link) => document.querySelector(link.getAttribute("href")));
  const mark = () => {
    const at = Math.max(
      0,
      sections.findLastIndex((section) => section.getBoundingClientRect().top < innerHeight * 0.35),
    );
    links.forEach((link, index) => link.classList.toggle("on", index === at));
  };
  addEventListener("scroll", mark, { passive: true });
  mark();
};
