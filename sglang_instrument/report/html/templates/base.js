// Decode the page's embedded data, create elements. Text is never inserted as markup.
"use strict";
const R = (window.sglangReport = { facts: null, errors: [] });
window.addEventListener("error", (event) => R.errors.push(String(event.message)));
window.addEventListener("unhandledrejection", (event) => R.errors.push(String(event.reason)));

R.$ = (id) => document.getElementById(id);

R.el = (tag, attributes = {}, ...children) => {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "style") Object.assign(made.style, value);
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value);
  }
  made.append(
    ...children
      .filter((child) => child !== null && child !== undefined)
      .map((child) => (child instanceof Node ? child : String(child))),
  );
  return made;
};

R.unpack = async (id) => {
  const text = R.$(id).textContent.trim();
  const raw = Uint8Array.fromBase64
    ? Uint8Array.fromBase64(text)
    : Uint8Array.from(atob(text), (sign) => sign.charCodeAt(0));
  const stream = new Blob([raw]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
};
R.unpackText = async (id) => new TextDecoder().decode(await R.unpack(id));

R.stepName = (key) => (key.startsWith("v") ? `validation ${key.slice(1)}` : `step ${key}`);
R.slug = (part) => part.replaceAll(" ", "-");
// The part of a step's time that a phase belongs to; parts stand for themselves.
R.partOf = (phase) => R.facts.parts_of_phases[R.facts.phases.indexOf(phase)] ?? phase;
// The colour of a phase or part: for elements, which follow the theme, and for canvases and charts.
R.shade = (phase) => `var(--part-${R.slug(R.partOf(phase))}, var(--part-other))`;
R.colour = (phase) => R.ink(`part-${R.slug(R.partOf(phase))}`) || R.ink("part-other");
R.swatch = (colour) => R.el("span", { class: "swatch", style: { background: colour } });
R.legendOf = (parts) => parts.map((part) => R.el("span", {}, R.swatch(R.shade(part)), part));

// Return a colour of the current theme, for canvases and charts, which CSS does not style.
R.ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

// Return the colour of text that is readable on a colour #rrggbb: black or white, one of which always has a
// contrast of 4.5:1 (WCAG 2, "relative luminance").
R.inkOn = (colour) => {
  const [red, green, blue] = [1, 3, 5].map((at) => {
    const part = parseInt(colour.slice(at, at + 2), 16) / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 ? "#000000" : "#ffffff";
};

R.tip = (event, title, ...lines) => {
  const tip = R.$("tip");
  tip.hidden = !event;
  if (!event) return;
  tip.replaceChildren(R.el("b", {}, title), ...lines.filter(Boolean).map((line) => R.el("div", {}, line)));
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(6, Math.min(event.clientX + 14, innerWidth - box.width - 8))}px`;
  const below = event.clientY + 18;
  const above = event.clientY - box.height - 12;
  tip.style.top = `${below + box.height > innerHeight ? above : below}px`;
};
