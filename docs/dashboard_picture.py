"""Make docs/images/grafana.png: `python docs/dashboard_picture.py`, with Prometheus, in two minutes.

`made_rollout.py` logs a run with a straggler and a tool that hangs. `watch --listen` follows it, Prometheus
reads that, and answers the queries of the dashboard's panels. This program draws the answers as Grafana
does: each panel has the place, title, queries and names that `watch --grafana` gives it.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl

mpl.use("agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from sglang_instrument.live.serving.dashboard import dashboard

ROOT: Final = Path(__file__).resolve().parents[1]
PICTURE: Final = ROOT / "docs" / "images" / "grafana.png"
UNPACKED: Final = ROOT / ".envs" / "prometheus" / "usr" / "bin"  # tests/environments/prometheus.sh
SCRAPE_SEC: Final = 1
WATCHED_SEC: Final = 20  # after the hang was told
BACK, PANEL, FRAME, TEXT = "#111217", "#181b1f", "#2b2f36", "#ccccdc"
#: Grafana's classic palette, in its order.
COLORS: Final = (
    *("#7eb26d", "#eab839", "#6ed0e0", "#ef843c", "#e24d42", "#1f78c1", "#ba43a9", "#705da0", "#508642"),
    *("#cca300", "#447ebc", "#c15c17"),
)
THRESHOLD: Final = {"green": "#73bf69", "red": "#f2495c"}
Series = tuple[str, list[float]]
Box = tuple[float, float, float, float]


def main() -> None:
    """Run the rollout, watch it, and draw what Prometheus answers."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        logs, page, prometheus = folder / "logs", _free_port(), _free_port()
        begun = [
            _start(str(ROOT / "docs" / "made_rollout.py"), str(logs)),
            _start("-m", "sglang_instrument.cli.main", "watch", str(logs), "--listen", str(page)),
            _start_prometheus(folder, page, prometheus),
        ]
        try:
            first = _wait(prometheus, "sglang_instrument_step > 0")
            _wait(prometheus, 'sglang_instrument_problems{kind="hang"} > 0')
            time.sleep(WATCHED_SEC)
            end = time.time()
            panels = json.loads(dashboard())["panels"]
            draw([(panel, _answers(prometheus, panel, first, end)) for panel in panels])
        finally:
            for one in begun:
                one.send_signal(signal.SIGINT)
            for one in begun:
                one.wait(60)


def _start(*arguments: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, *arguments], env=environment)  # noqa: S603 - our own commands


def _start_prometheus(folder: Path, page: int, port: int) -> subprocess.Popen[bytes]:
    program = shutil.which("prometheus", path=os.pathsep.join([str(UNPACKED), os.environ.get("PATH", "")]))
    if program is None:
        raise SystemExit("no prometheus: run tests/environments/prometheus.sh")
    jobs = [{"job_name": "rollout", "static_configs": [{"targets": [f"127.0.0.1:{page}"]}]}]
    config = folder / "prometheus.yml"
    config.write_text(json.dumps({"global": {"scrape_interval": f"{SCRAPE_SEC}s"}, "scrape_configs": jobs}))
    options = (f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}", "--log.level=error")
    command = [program, *options, f"--web.listen-address=127.0.0.1:{port}"]
    return subprocess.Popen(command)  # noqa: S603 - Prometheus


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _ask(port: int, what: str, **asked: str) -> list[dict[str, Any]]:
    address = f"http://127.0.0.1:{port}/api/v1/{what}?{urllib.parse.urlencode(asked)}"
    with urllib.request.urlopen(address) as answer:
        result: list[dict[str, Any]] = json.load(answer)["data"]["result"]
    return result


def _wait(port: int, query: str) -> float:
    """Wait until a query has an answer; return when it was asked."""
    for _ in range(600):
        try:
            if _ask(port, "query", query=query):
                return time.time()
        except OSError:  # it does not listen yet
            pass
        time.sleep(1)
    raise SystemExit(f"no answer: {query}")


def _answers(port: int, panel: dict[str, Any], begin: float, end: float) -> list[Series]:
    """Return what Grafana would show in a panel: a value for each second, none where there is none."""
    found: list[Series] = []
    seconds = int((end - begin) / SCRAPE_SEC)
    for target in panel["targets"]:
        query = target["expr"].replace("$__rate_interval", f"{4 * SCRAPE_SEC}s").replace("$instance", ".*")
        if target.get("instant"):
            answers = _ask(port, "query", query=query, time=f"{end}")
        else:
            asked = {"query": query, "start": f"{begin}", "end": f"{end}", "step": f"{SCRAPE_SEC}"}
            answers = _ask(port, "query_range", **asked)
        for answer in answers:
            labels = answer["metric"]
            name = re.sub(r"{{(\w+)}}", lambda label, of=labels: of.get(label[1], ""), target["legendFormat"])
            line = [math.nan] * (seconds + 1)
            for at, value in answer.get("values") or [answer["value"]]:
                line[min(seconds, round((at - begin) / SCRAPE_SEC))] = float(value)
            found.append((name, line))
    return found


def draw(shown: list[tuple[dict[str, Any], list[Series]]]) -> None:
    """Draw panels with their answers, each at its place."""
    height = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel, _ in shown)
    plt.rcParams.update({"font.size": 8, "text.color": TEXT, "font.family": "DejaVu Sans"})
    figure = plt.figure(figsize=(14, height * 0.23), facecolor=BACK)
    for panel, series in shown:
        place, gap = panel["gridPos"], 0.003
        left, bottom = place["x"] / 24 + gap, 1 - (place["y"] + place["h"]) / height + gap
        box = (left, bottom, place["w"] / 24 - 2 * gap, place["h"] / height - 2 * gap)
        frame = figure.add_axes(box, facecolor=PANEL)
        frame.set(xticks=[], yticks=[])
        frame.spines[:].set_color(FRAME)
        figure.text(left + 0.006, bottom + box[3] - 0.007, panel["title"], va="top", fontweight="bold")
        (_numbers if panel["type"] == "stat" else _lines)(figure, box, panel, series)
    figure.savefig(PICTURE, dpi=100, facecolor=BACK)


def _numbers(figure: Figure, box: Box, panel: dict[str, Any], series: list[Series]) -> None:
    """Write the number of each line, in the color of its threshold."""
    left, bottom, width, height = box
    defaults = panel["fieldConfig"]["defaults"]
    for place, (name, line) in enumerate(series):
        number, middle = line[-1], left + width * (place + 0.5) / len(series)
        reached = [one for one in defaults["thresholds"]["steps"] if number >= (one["value"] or 0)]
        told = f"{number:.3g}" + _unit(panel)
        color = THRESHOLD[reached[-1]["color"]]
        figure.text(middle, bottom + height * 0.38, told, ha="center", va="center", fontsize=19, color=color)
        figure.text(middle, bottom + height * 0.1, name, ha="center")
    if not series:
        figure.text(left + width / 2, bottom + height * 0.38, "No data", ha="center", va="center")


def _lines(figure: Figure, box: Box, panel: dict[str, Any], series: list[Series]) -> None:
    """Draw the lines of a panel over time, one on top of the other where the panel stacks them."""
    left, bottom, width, height = box
    inner = (left + 0.026, bottom + 0.042, width - 0.034, height - 0.066)
    axes = figure.add_axes(inner, facecolor=PANEL)
    custom = panel["fieldConfig"]["defaults"]["custom"]
    alone = {one["matcher"]["options"] for one in panel["fieldConfig"].get("overrides", [])}
    below = np.zeros(len(series[0][1])) if series else np.zeros(0)
    for number, (name, line) in enumerate(series):
        color, is_stacked = COLORS[number % len(COLORS)], custom["stacking"]["mode"] == "normal"
        low = below if is_stacked and name not in alone else np.zeros(len(line))
        top = low + np.array(line)
        axes.plot(top, color=color, linewidth=2 if name in alone else 1, label=name)
        if name not in alone:
            axes.fill_between(
                range(len(line)), low, top, color=color, alpha=custom["fillOpacity"] / 100, lw=0
            )
            below = np.where(np.isnan(top), below, top) if is_stacked else below
    _style(axes, _unit(panel))
    if series:
        columns = max(1, math.floor(width * 16))
        place = {"loc": "upper left", "bbox_to_anchor": (-0.02, -0.12), "frameon": False}
        axes.set_xlim(0, len(series[0][1]) - 1)
        axes.legend(**place, ncols=columns, fontsize=6.5, handlelength=1, columnspacing=1, labelspacing=0.2)
    else:
        axes.set(xlim=(0, 1), ylim=(0, 1), xticks=[], yticks=[])
        axes.text(0.5, 0.5, "No data", ha="center", va="center")


def _style(axes: Axes, unit: str) -> None:
    axes.set_ylim(bottom=0)
    axes.grid(color=FRAME, linewidth=0.6)
    axes.tick_params(colors=TEXT, labelsize=7, length=0)
    axes.xaxis.set_major_formatter(lambda sec, _: f"{int(sec) // 60}:{int(sec) % 60:02}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}{unit}")
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.spines[:].set_visible(False)


def _unit(panel: dict[str, Any]) -> str:
    return " s" if panel["fieldConfig"]["defaults"]["unit"] == "s" else ""


if __name__ == "__main__":
    main()
