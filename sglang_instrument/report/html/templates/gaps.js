// Show plateaus, in which no request ended, and blocked event loops.
"use strict";

R.standingStill = () => {
  const { plateaus, blocks, of_plateaus, of_blocks } = R.facts.gaps;
  const cards = [...plateaus.map(R.plateauCard), ...blocks.map(R.blockCard)];
  const left = of_plateaus + of_blocks - cards.length;
  const none = "No plateau and no blocked event loop was found.";
  if (left > 0) cards.push(R.el("p", { class: "note" }, `and ${R.count(left)} more: sglang-instrument gaps`));
  if (!cards.length) cards.push(R.el("div", { class: "card muted" }, none));
  R.$("still").replaceChildren(...cards);
};

R.plateauCard = (row) => {
  const requests = `${R.count(row.stuck_requests)} of ${R.plural(row.requests, "request")} stood still`;
  const title = `${R.stepName(R.keyOf(row))}, worker ${row.worker}: ${requests}`;
  let text = `from ${R.seconds(row.since_sec)} to ${R.seconds(row.to_sec)}`;
  if (row.turn !== null) text += `, ${R.count(row.in_turn)} of them in turn ${row.turn + 1}, ${row.event}`;
  if (row.slowdown) text += `; ${row.slowdown.toFixed(1)} times the usual seconds a token`;
  return R.stillCard(row, R.seconds(row.to_sec - row.since_sec), title, text);
};

R.blockCard = (row) => {
  const step = row.step === null ? "" : `${R.stepName(R.keyOf(row))}, `;
  const title = `${step}${row.role} ${row.worker}: the event loop was blocked`;
  const culprit = row.culprit ? `by ${row.culprit}` : "no stack shows what blocked it";
  const text = row.in_span ? `${culprit}, in ${row.in_span}` : culprit;
  return R.stillCard(row, R.seconds(row.blocked_sec), title, text);
};

R.stillCard = (row, big, title, text) => {
  const key = R.keyOf(row);
  const link = R.el("a", { class: "link", href: R.hashOf({ step: key }) }, "Show in the timeline →");
  return R.el(
    "div",
    { class: "card still" },
    R.el("p", {}, R.el("b", {}, title)),
    R.el("p", { class: "big" }, big),
    R.el("p", { class: "muted" }, text),
    R.full(key) ? link : R.el("span"),
  );
};

R.keyOf = (row) => `${row.validate ? "v" : ""}${row.step}`;
