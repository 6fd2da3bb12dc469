"""Figures agree with the log: the slowest requests are the slowest, and no time is drawn twice."""

from __future__ import annotations

import json
import re
from pathlib import Path

import polars as pl
import pytest

from sglang_instrument.analysis import open_run
from sglang_instrument.analysis.ledger.ledger import PARTS
from sglang_instrument.cli.main import main
from sglang_instrument.report.figures.drawing import FIGURES as BY_NAME
from sglang_instrument.report.figures.drawing import choose
from sglang_instrument.report.figures.parts import NothingToDrawError
from sglang_instrument.report.figures.requests import moments_of, moments_of_worker
from sglang_instrument.report.palette import DARK_COLOURS, PART_COLOURS, PART_OF_EVENT, part_of
from sglang_instrument.schema import PHASES
from sglang_instrument.testing import SlowEngine, synthetic_run

FIGURES = [
    "overview",
    "shares",
    "lengths",
    "caps",
    "workers",
    "cdf",
    "cdf-workers",
    "slowest",
    "turns",
    "turn-counts",
    "turn-durations",
]


def test_each_part_of_the_ledger_has_one_name_and_one_colour() -> None:
    assert sorted(PART_COLOURS) == sorted(PARTS) == sorted(DARK_COLOURS)
    assert len(set(PART_COLOURS.values())) == len(PART_COLOURS)
    assert {part_of(phase) for phase in PHASES} <= set(PARTS)
    assert part_of("generate") == "engine"
    assert part_of("loop") == "unaccounted"  # a loop that contains turns, as in the ledger
    assert {part_of(part) for part in PART_OF_EVENT.values()} == set(PART_OF_EVENT.values())


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("logs") / "exp"
    slow = SlowEngine(2, 1, factor=6.0)
    return synthetic_run(folder, steps=4, workers=3, requests=8, validate_every=2, causes=[slow])


def plotted(
    capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0
) -> dict[str, dict[str, str]]:
    assert main(["plot", *map(str, arguments), "--json"]) == code
    answer: dict[str, dict[str, str]] = json.loads(capsys.readouterr().out)
    return answer


def lengths(axes):
    """Return the widths of the bars of each row, the first row first."""
    rows: dict[float, list[float]] = {}
    for bars in axes.collections:
        for path in bars.get_paths() if hasattr(bars, "get_paths") else []:
            box = path.get_extents()
            if box.height > 0.5 and box.width > 0:
                rows.setdefault(round(box.y0 + box.height / 2), []).append(box.width)
    return rows


def test_every_figure_becomes_a_file(capsys: pytest.CaptureFixture[str], logs: Path, tmp_path: Path) -> None:
    answer = plotted(capsys, logs, "-o", tmp_path / "new" / "figures", "--dpi", 40)
    assert list(answer["figures"]) == FIGURES
    assert answer["step"] == 2  # the slow engine's, which took longest
    for path in answer["figures"].values():
        assert Path(path).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("suffix", "starts"), [("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_figures_become_files_of_another_format(
    capsys: pytest.CaptureFixture[str], logs: Path, tmp_path: Path, suffix: str, starts: bytes
) -> None:
    wanted = ("--figure", "slowest", "--figure", "workers")
    answer = plotted(capsys, logs, "-o", tmp_path, "--format", suffix, *wanted)
    assert {path: Path(path).read_bytes()[: len(starts)] for path in answer["figures"].values()} == {
        str(tmp_path / f"{name}.{suffix}"): starts for name in ("slowest", "workers")
    }


def test_the_same_run_gives_the_same_bytes(
    capsys: pytest.CaptureFixture[str], logs: Path, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        plotted(capsys, logs, "-o", tmp_path / name, "--format", "svg", "--figure", "cdf")
    assert (tmp_path / "one/cdf.svg").read_bytes() == (tmp_path / "two/cdf.svg").read_bytes()


def test_the_slowest_requests_are_the_slowest_of_all_workers(
    capsys: pytest.CaptureFixture[str], logs: Path, tmp_path: Path
) -> None:
    options = ("--figure", "slowest", "--format", "svg", "--limit", 5)
    answer = plotted(capsys, logs, "-o", tmp_path, "--step", 3, *options)
    words = Path(answer["figures"]["slowest"]).read_text()
    durations = {}
    for path in (logs / "step_3").glob("*.jsonl"):
        for record in map(json.loads, path.read_text().splitlines()):
            if record["event"] == "async_rollout_request_complete":
                durations[record["extra"]["request_id"]] = record["duration_sec"]
    expected = sorted(durations, key=durations.__getitem__, reverse=True)[:5]
    shown = re.findall(r"w\d  ([\w-]+)…([\w-]+)", words)
    assert [request[:6] + request[-11:] for request in expected] == [head + tail for head, tail in shown]


def test_no_time_of_a_request_is_drawn_twice(logs: Path) -> None:
    choice = choose(open_run(logs), step=2)
    requests = choice.digest.requests.filter(step=2)
    for worker in requests["worker"].unique():
        moments = moments_of_worker(choice, worker)
        for request in requests.filter(worker=worker).iter_rows(named=True):
            mine = moments_of(moments, request)
            assert set(mine["phase"]) <= set(PHASES)
            drawn = mine.select((pl.col("to_sec") - pl.col("from_sec")).sum()).item()
            tools_at_once = len(mine) > len(mine.unique("from_sec"))
            assert drawn == pytest.approx(request["duration_sec"], rel=1e-3) or (
                tools_at_once and drawn >= request["duration_sec"]
            )


def test_bars_of_the_slowest_are_as_long_as_the_requests(logs: Path) -> None:
    choice = choose(open_run(logs), step=2, limit=6)
    axes = BY_NAME["slowest"](choice).axes[0]
    longest = choice.digest.requests.filter(step=2)["duration_sec"].sort(descending=True).head(6).to_list()
    for row, bars in sorted(lengths(axes).items()):
        assert sum(bars) >= longest[row] * 0.999


def test_bars_of_the_workers_add_up_to_their_durations(logs: Path) -> None:
    choice = choose(open_run(logs), step=2)
    axes = BY_NAME["workers"](choice).axes[0]
    ends = [0.0] * 3
    for bar in axes.patches:
        row = round(bar.get_y() + bar.get_height() / 2)
        ends[row] = max(ends[row], bar.get_x() + bar.get_width())
    durations = choice.digest.steps.filter(step=2)["duration_sec"]
    assert sorted(ends) == pytest.approx(sorted(durations.to_list()), rel=2e-3)


def test_shares_of_a_step_add_up_to_100_percent(logs: Path) -> None:
    axes = BY_NAME["shares"](choose(open_run(logs))).axes[0]
    tops: dict[int, float] = {}
    for bar in axes.patches:
        step = round(bar.get_x() + bar.get_width() / 2)
        tops[step] = max(tops.get(step, 0.0), bar.get_y() + bar.get_height())
    assert list(tops) == [1, 2, 3, 4]
    assert list(tops.values()) == pytest.approx([100.0] * 4, abs=0.2)


def test_validation_is_drawn_apart(logs: Path) -> None:
    run = open_run(logs)
    assert choose(run, validate=True).digest.steps["step"].unique().to_list() == [2, 4]
    axes = BY_NAME["overview"](choose(run)).axes[0]
    grey = next(points for points in axes.collections if points.get_label() == "validation")
    assert [int(x) for x, _ in grey.get_offsets()] == [2, 4]


def test_a_curve_reaches_one_at_the_longest_request(logs: Path) -> None:
    choice = choose(open_run(logs))
    curve = next(line for line in BY_NAME["cdf"](choice).axes[0].lines if line.get_label() == "all requests")
    longest = choice.digest.requests["duration_sec"].max()
    assert (curve.get_xdata()[-1], curve.get_ydata()[-1]) == (longest, 1.0)


def test_ids_with_dollars_and_underscores_are_plain_text(tmp_path: Path) -> None:
    folder = synthetic_run(tmp_path / "exp", steps=1, workers=1, requests=2)
    log = folder / "step_1" / "worker_0.jsonl"
    name = json.loads(next(line for line in log.read_text().splitlines() if "request_id" in line))["extra"][
        "request_id"
    ]
    log.write_text(log.read_text().replace(name, "$x_{1"))
    assert (
        main(["plot", str(folder), "-o", str(tmp_path / "out"), "--figure", "slowest", "--format", "svg"])
        == 0
    )
    assert "$x_{1" in (tmp_path / "out/slowest.svg").read_text()


def test_missing_data_is_named_and_affects_no_other_figure(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    log = tmp_path / "exp/step_1/worker_0.jsonl"
    log.parent.mkdir(parents=True)
    log.write_text('{"timestamp":"2026-01-05T08:00:01","event":"total_step_duration","duration_sec":3.0}\n')
    answer = plotted(capsys, tmp_path / "exp", "-o", tmp_path / "out")
    assert set(answer["figures"]) == {"overview", "shares", "workers"}
    assert answer["left_out"]["slowest"] == "no request has ended yet"
    assert (
        plotted(capsys, tmp_path / "exp", "-o", tmp_path / "out", "--figure", "cdf", code=1)["figures"] == {}
    )
    with pytest.raises(NothingToDrawError, match="no turn"):
        BY_NAME["turns"](choose(open_run(tmp_path / "exp")))


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--figure", "cfd"), "no figure 'cfd'; did you mean 'cdf'?"),
        (("--step", 9), "no step 9; there are 4, the nearest: 2, 3, 4"),
        (("--limit", 0), "--limit must be at least 1, got 0"),
        (("--dpi", 5), "--dpi must be from 20 to 1200, got 5"),
    ],
)
def test_a_wrong_choice_is_refused_with_the_correct_one(
    capsys: pytest.CaptureFixture[str], logs: Path, tmp_path: Path, arguments: tuple[object, ...], error: str
) -> None:
    assert main(["plot", str(logs), "-o", str(tmp_path / "out"), *map(str, arguments)]) == 2
    assert error in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_lengths_of_the_figure_are_those_of_the_table(logs: Path) -> None:
    run = open_run(logs)
    figure = BY_NAME["lengths"](choose(run))
    drawn = [{line.get_label(): list(line.get_ydata()) for line in axes.lines} for axes in figure.axes]
    table = run.table("lengths").filter(validate=False)
    assert [drawn[0][name] for name in ("shortest", "mean", "longest")] == [
        table[f"{name}_tokens"].to_list() for name in ("min", "mean", "max")
    ]
    (speed,) = drawn[2].values()
    assert speed == table["tokens_per_sec"].to_list()
    assert [axes.get_ylabel() for axes in figure.axes] == ["response tokens", "mean reward", "tokens/s"]


def test_durations_by_turns_are_the_means_of_the_requests_and_lack_a_dot_where_a_step_has_none(
    logs: Path,
) -> None:
    run = open_run(logs)
    (axes,) = BY_NAME["turn-durations"](choose(run)).axes
    drawn = {
        (int(line.get_label().split()[0].rstrip("+")), step): mean
        for line in axes.lines
        for step, mean in zip(line.get_xdata(), line.get_ydata(), strict=True)
        if mean == mean
    }
    means = run.requests().group_by("turns", "step").agg(pl.col("duration_sec").mean())
    assert drawn == pytest.approx({(turns, step): mean for turns, step, mean in means.iter_rows()})
