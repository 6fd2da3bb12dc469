// Handle the mouse on the timeline, and its fields.
"use strict";

R.secAt = (event) => {
  const { view } = R.timeline,
    box = R.$("t-canvas").getBoundingClientRect();
  return view.from + ((event.clientX - box.left - LEFT) / R.tSize().plot) * (view.to - view.from);
};
R.itemAt = (event) => {
  const { placed, view } = R.timeline,
    box = R.$("t-canvas").getBoundingClientRect();
  const y = event.clientY - box.top - AXIS + view.top;
  return event.clientY - box.top < AXIS
    ? null
    : placed.items.find((item) => y >= item.y && y < item.y + item.high) || null;
};

// Return the deepest span under the mouse.
R.spanAt = (event, item) => {
  const { model, view } = R.timeline;
  if (!item || item.kind === "band") return -1;
  const sec = R.secAt(event),
    slack = ((view.to - view.from) / R.tSize().plot) * 1.5;
  const lane =
    item.kind === "lanes"
      ? Math.floor(
          (event.clientY - R.$("t-canvas").getBoundingClientRect().top - AXIS + view.top - item.y - 4) /
            R.LANE,
        )
      : null;
  let found = -1;
  for (let span = item.row.first; span < item.row.end; span++) {
    const from = model.start[span] * model.tick_sec,
      to = from + model.ticks[span] * model.tick_sec;
    if (from - slack > sec || to + slack < sec || (lane !== null && item.lanes.lane.get(span) !== lane))
      continue;
    if (found < 0 || model.depth[span] >= model.depth[found]) found = span;
  }
  return found;
};

R.zoom = (factor, around = null) => {
  const { view } = R.timeline;
  const middle = around ?? R.timeline.cursor ?? (view.from + view.to) / 2;
  view.from = middle - (middle - view.from) * factor;
  view.to = middle + (view.to - middle) * factor;
  R.moved();
};
R.pan = (sec, pixels = 0) => {
  const { view } = R.timeline;
  view.from += sec;
  view.to += sec;
  view.top += pixels;
  R.moved();
};
R.moved = () => {
  R.bound();
  R.repaint();
  R.paintOverview();
};

R.hover = (event) => {
  const line = R.timeline,
    item = R.itemAt(event);
  if (!line.pinned)
    R.setCursor(event.clientX - R.$("t-canvas").getBoundingClientRect().left < LEFT ? null : R.secAt(event));
  const span = R.spanAt(event, item);
  if (!item || item.kind === "band" || span < 0) return R.tip(null);
  const { model } = line,
    turn = model.turn[span];
  const inTurn = turn === R.TURNLESS ? "" : `, turn ${turn + 1}`;
  const where = item.row.request === null ? `worker ${item.worker}` : `request ${item.row.request}${inTurn}`;
  const open = model.flags[span] & R.OPEN ? ", unended" : "";
  const failed = model.flags[span] & R.FAILED ? ", raised an error" : "";
  const [took, from] = [model.ticks[span], model.start[span]].map((ticks) =>
    R.seconds(ticks * model.tick_sec),
  );
  const running = R.seconds((model.active[span] - 1) * model.tick_sec);
  const suspended = model.active[span] ? `running for ${running}, suspended for the rest` : "";
  const fields = model.fields[model.words[span]];
  const when = `${took}${open}${failed}, from ${from}`;
  R.tip(event, model.events[model.event[span]], where, when, suspended, fields);
};

R.setCursor = (sec) => {
  const line = R.timeline;
  line.cursor = sec;
  R.repaint();
  if (!line.telling)
    line.telling = requestAnimationFrame(() => {
      line.telling = 0;
      R.showMoment(line.model, line.cursor);
    });
};

R.wireMouse = (canvas) => {
  let held = null;
  canvas.addEventListener("pointerdown", (event) => {
    if (!R.timeline.model || event.button) return;
    canvas.focus({ preventScroll: true });
    canvas.setPointerCapture(event.pointerId);
    held = {
      x: event.clientX,
      y: event.clientY,
      view: { ...R.timeline.view },
      far: false,
      from: R.secAt(event),
      choosing: event.shiftKey,
    };
  });
  canvas.addEventListener("pointermove", (event) => {
    const line = R.timeline;
    if (!line.model) return;
    if (!held) return R.hover(event);
    held.far ||= Math.hypot(event.clientX - held.x, event.clientY - held.y) > 4;
    if (!held.far || held.choosing) return;
    canvas.classList.add("grabbing");
    R.tip(null);
    const sec = ((event.clientX - held.x) / R.tSize().plot) * (held.view.to - held.view.from);
    Object.assign(line.view, {
      from: held.view.from - sec,
      to: held.view.to - sec,
      top: held.view.top - (event.clientY - held.y),
    });
    R.moved();
  });
  canvas.addEventListener("pointerup", (event) => {
    const was = held;
    held = null;
    canvas.classList.remove("grabbing");
    if (!was || !R.timeline.model) return;
    if (was.far && was.choosing) {
      const [from, to] = [was.from, R.secAt(event)].sort((a, b) => a - b);
      Object.assign(R.timeline.view, { from, to });
      R.moved();
    } else if (!was.far) R.clicked(event);
  });
  canvas.addEventListener("pointercancel", () => {
    held = null; // the browser scrolls the page with this finger
  });
  canvas.addEventListener("pointerleave", () => {
    R.tip(null);
    if (!R.timeline.pinned && !held) R.setCursor(null);
  });
  canvas.addEventListener(
    "wheel",
    (event) => {
      if (!R.timeline.model || !(event.ctrlKey || event.metaKey || document.activeElement === canvas)) return;
      event.preventDefault();
      if (event.ctrlKey || event.metaKey)
        R.zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) / 180), R.secAt(event));
      else
        R.pan(
          event.shiftKey || event.deltaX
            ? ((event.deltaX || event.deltaY) / R.tSize().plot) * (R.timeline.view.to - R.timeline.view.from)
            : 0,
          event.shiftKey ? 0 : event.deltaY,
        );
    },
    { passive: false },
  );
};

R.clicked = (event) => {
  const line = R.timeline,
    item = R.itemAt(event);
  if (item?.kind === "request")
    return R.go({ request: line.selected === item.row ? null : item.row.request });
  line.pinned = !line.pinned;
  R.setCursor(R.secAt(event));
};

R.wireOverview = (canvas) => {
  let from = null;
  const sec = (event) => {
    const box = canvas.getBoundingClientRect();
    return ((event.clientX - box.left - LEFT) / (box.width - LEFT)) * R.timeline.model.extent_sec;
  };
  canvas.addEventListener("pointerdown", (event) => {
    if (R.timeline.model) {
      canvas.setPointerCapture(event.pointerId);
      from = sec(event);
    }
  });
  canvas.addEventListener("pointermove", (event) => {
    if (from === null) return;
    const [low, high] = [from, sec(event)].sort((a, b) => a - b);
    if (high - low > R.timeline.model.extent_sec * 0.004) {
      Object.assign(R.timeline.view, { from: low, to: high });
      R.moved();
    }
  });
  canvas.addEventListener("pointerup", (event) => {
    if (from !== null && Math.abs(sec(event) - from) <= R.timeline.model.extent_sec * 0.004)
      R.pan(sec(event) - (R.timeline.view.from + R.timeline.view.to) / 2);
    from = null;
  });
  canvas.addEventListener("dblclick", R.wholeStep);
};

R.wireTools = () => {
  const set = (id, change) =>
    R.$(id).addEventListener("input", () => {
      if (R.timeline.model) {
        change(R.$(id).value, R.timeline.filter);
        R.place();
      }
    });
  set("t-search", (value, filter) => {
    filter.text = value.trim();
  });
  set("t-worker", (value, filter) => {
    filter.worker = value === "" ? null : Number(value);
  });
  set("t-event", (value, filter) => {
    filter.event = Number(value);
  });
  set("t-least", (value, filter) => {
    filter.least = Number(value) || 0;
  });
  set("t-sort", (value, filter) => {
    filter.sort = value;
  });
  set("t-rows", (value, filter) => {
    filter.size = value;
  });
  R.$("t-search").addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      R.$("t-search").value = "";
      R.$("t-search").dispatchEvent(new Event("input"));
      R.$("t-canvas").focus({ preventScroll: true });
    }
    const found = R.timeline.placed?.items.find((item) => item.kind === "request");
    if (event.key === "Enter" && found) R.go({ request: found.row.request });
  });
  R.$("t-reset").addEventListener("click", () => {
    if (!R.timeline.model) return;
    R.timeline.filter = R.noFilter();
    R.timeline.pinned = false;
    R.fillTools();
    R.go({ request: null });
    R.wholeStep();
  });
};

R.wireTimeline = () => {
  const canvas = R.$("t-canvas");
  R.wireMouse(canvas);
  R.wireOverview(R.$("t-overview"));
  R.wireTools();
  R.wireKeys(canvas);
  // In the next frame, because the canvas changes its own height.
  new ResizeObserver(() => requestAnimationFrame(() => R.timeline.filter && R.place())).observe(canvas);
  R.themeListeners.push(() => {
    R.timeline.inks = null;
    R.repaint();
    R.paintOverview();
  });
};
