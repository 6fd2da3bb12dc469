"""The report shows the findings of the analysis in a real browser, and loads nothing from outside."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from browser import Browser, browser
from small_disks import small_disk

from sglang_instrument.analysis import Rules, findings_of, open_run, request_table, what_if
from sglang_instrument.cli.main import main
from sglang_instrument.report.html import page as page_module
from sglang_instrument.report.palette import DARK_COLOURS, PART_COLOURS
from sglang_instrument.testing import BlockedLoop, Hang, Plateau, SlowEngine, SlowReward, synthetic_run

DEMO = Path(__file__).parents[1] / "logs" / "demo"  # a log of the real engine, written by `make demo`
HOSTILE = "</script><img src=x onerror=\"sglangReport.errors.push('ran')\"><b>&amp;"
SECTIONS = (
    *("verdict", "steps", "concurrency", "workers", "durations", "requests", "timeline", "turns", "lengths"),
    *("gaps", "whatif", "health"),
)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("logs")
    shape = {"steps": 4, "workers": 4, "requests": 14, "first_step": 65}
    return {
        "plateau": synthetic_run(
            folder / "plateau",
            **shape,
            seed=3,
            validate_every=66,
            causes=[
                Plateau(67, 0, start_sec=12.0, end_sec=90.0, requests=11),
                SlowReward(65, 2, seconds=9.0),
                BlockedLoop(68, 1, at_sec=2.0, seconds=7.0),
                SlowEngine(66, 3, factor=3.0),
            ],
        ),
        "plain": synthetic_run(folder / "plain", **shape, seed=4),
        "hang": _named_hang(
            synthetic_run(folder / "hang", steps=2, workers=2, requests=6, causes=[Hang(2, 1)])
        ),
        "empty": _empty(folder / "empty"),
        "demo": DEMO,
    }


def _empty(folder: Path) -> Path:
    """A run whose only process has opened its file and recorded nothing yet."""
    synthetic_run(folder, steps=1, workers=1, requests=1)
    for path in folder.glob("step_*/*.jsonl"):
        path.write_text(path.read_text().splitlines(keepends=True)[0])
    return folder


def _named_hang(folder: Path) -> Path:
    """Add the id of the request whose tool hangs: a real log has it, the synthetic one does not."""
    path = folder / "step_2" / "worker_1.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    asked = [record["extra"]["request_id"] for record in records if "request_id" in record.get("extra", {})]
    ended = [
        record["extra"]["request_id"]
        for record in records
        if record["event"] == "async_rollout_request_complete"
    ]
    (hung,) = set(asked) - set(ended)
    for record in records:
        if record["event"] == "open_spans":
            for span in record["extra"]["spans"]:
                if span["event"] == "tool_execution":
                    span |= {"request_id": hung, "turn": 0}
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder


@pytest.fixture(scope="module")
def report(runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Make the report of a run only once."""
    made: dict[tuple[str, ...], Path] = {}
    folder = tmp_path_factory.mktemp("reports")

    def make(name: str, *arguments: str) -> Path:
        key = (name, *arguments)
        if key not in made:
            made[key] = folder / f"{len(made)}.html"
            assert main(["report", str(runs[name]), *arguments, "-o", str(made[key])]) == 0
        return made[key]

    return make


@pytest.mark.parametrize("name", ["plateau", "hang", "empty", "demo"])
def test_every_section_opens_without_an_error_and_without_a_request(
    page: Browser, report: Callable[..., Path], name: str
) -> None:
    page.open(report(name)).draw_all()
    for section in SECTIONS:
        assert page.js("document.getElementById(arguments[0]).innerText.length > 40", section), section
    assert page.complaints() == []
    assert page.requests() == []


def test_the_planted_causes_are_shown_in_their_sections(
    page: Browser, report: Callable[..., Path], runs: dict[str, Path]
) -> None:
    run = open_run(runs["plateau"])
    findings = findings_of(run, over=False)
    assert {finding.cause for finding in findings} >= {"standstill", "engine", "blocked-loop"}
    page.open(report("plateau")).draw_all()
    verdict = page.text("verdict")
    assert all(
        finding.sentence in verdict or finding.sentence.capitalize() in verdict for finding in findings[:5]
    )
    assert "Step 67" in verdict
    assert "Worker 0" in verdict
    marked = page.js("[...document.querySelectorAll('#chart-steps .annotation-text')].length")
    assert marked == len({(finding.step, finding.validate) for finding in findings})
    assert "stood still" in page.text("still")
    assert "the event loop was blocked" in page.text("still")
    assert page.js("document.getElementById('blame').rows[1].cells[0].innerText") == "worker 0"
    slowest = request_table(run.digest).filter(validate=False)["request_id"][0]
    assert page.js("document.querySelector('#slowest .id').textContent") == slowest
    page.do("document.querySelector('#slowest details').open = true")
    page.until("document.querySelectorAll('#slowest details[open] .waterfall .track').length > 3")
    assert "turn_engine_call" in page.js("document.querySelector('#slowest details[open]').innerText")


def test_a_request_of_the_real_engine_shows_its_queue_and_suspended_time(
    page: Browser, report: Callable[..., Path]
) -> None:
    page.open(report("demo"))
    page.do("document.querySelector('#slowest details').open = true")
    page.until("document.querySelector('#slowest details[open] .told') !== null")
    shown = page.js("document.querySelector('#slowest details[open]').innerText")
    assert "in the queue" in shown
    assert "engine_generate" in shown
    assert "suspended" in shown


def test_validations_are_shown_apart(
    page: Browser, report: Callable[..., Path], runs: dict[str, Path]
) -> None:
    page.open(report("plateau")).draw_all()
    steps = page.js("sglangReport.facts.steps.filter(one => one.validate).map(one => one.key)")
    assert steps == ["v66"]
    opacity = page.js("document.getElementById('chart-steps').data[0].marker.opacity")
    assert opacity == [1, 1, 1, 1, 0.45]


def test_the_sliders_show_what_whatif_says(
    page: Browser, report: Callable[..., Path], runs: dict[str, Path]
) -> None:
    page.open(report("plateau"))
    grid = page.js("sglangReport.facts.whatif")
    digest = open_run(runs["plateau"]).digest.filter(~pl.col("validate"))
    for indices in ((0, 0, 0), (2, 0, 0), (1, 1, 2), (len(grid["max_tokens"]) - 1, 2, 3)):
        for name, value in zip(("max_tokens", "max_turns", "oversample"), indices, strict=True):
            page.choose(f"whatif-{name}", value)
        caps, turns, oversample = (
            grid[name][value]
            for name, value in zip(("max_tokens", "max_turns", "oversample"), indices, strict=True)
        )
        predicted = what_if(digest, Rules(max_tokens=caps, max_turns=turns, oversample=oversample))
        shown = page.js("[...document.querySelectorAll('#outcome b')].map(one => one.innerText)")
        assert shown[0] == page.js("sglangReport.seconds(arguments[0])", predicted["recorded_sec"].sum())
        assert shown[1] == page.js("sglangReport.seconds(arguments[0])", predicted["predicted_sec"].sum())
        assert shown[3] == f"{predicted['ended_early'].sum()} of {predicted['requests'].sum()}"
    assert shown[2] != "0 %"


def test_a_second_run_is_compared_with_the_first(
    page: Browser, report: Callable[..., Path], runs: dict[str, Path]
) -> None:
    page.open(report("plain", str(runs["plateau"]))).draw_all()
    assert page.js("document.querySelector('h1').innerText").split() == ["A", "plain", "B", "plateau"]
    assert "duration" in page.text("comparison")
    assert "too few steps" in page.text("comparison")
    names = page.js("document.getElementById('chart-cdf').data.map(one => one.name)")
    assert names[-2:] == ["A: all requests", "B: all requests"]
    assert "B" in page.js("document.getElementById('chart-steps').data.map(one => one.name)")
    assert page.complaints() == []


def test_only_a_blocked_loop_is_named_so_in_the_timeline(page: Browser, report: Callable[..., Path]) -> None:
    named = {}
    for step in ("66", "68"):
        page.open(report("plateau"), f"#step={step}")
        events = page.js("sglangReport.timeline.model.events")
        assert "main_loop" in events
        named[step] = "event_loop_block" in events, "blocked loop" in page.text("t-legend")
    assert named == {"66": (False, False), "68": (True, True)}


def test_what_did_not_end_is_shown_and_named(page: Browser, report: Callable[..., Path]) -> None:
    page.open(report("hang"), "#step=2")
    assert "never ended" in page.text("verdict")
    open_rows = page.js("sglangReport.timeline.model.rows.filter(one => one.open && one.request !== null)")
    assert len(open_rows) == 1
    page.do("sglangReport.go({request: arguments[0]})", open_rows[0]["request"])
    page.until("!document.getElementById('inspector').hidden")
    assert "(unended)" in page.text("inspector")
    assert "unended; open for" in page.text("inspector")


def test_the_report_of_a_request_with_a_hostile_name_runs_none_of_it(
    page: Browser, runs: dict[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "<i>hostile"
    synthetic_run(folder, steps=1, workers=2, requests=4)
    run = open_run(folder, cached=False)
    victim = run.digest.requests.sort("duration_sec")["request_id"][-1]
    for path in folder.glob("step_*/*.jsonl"):
        path.write_text(path.read_text().replace(json.dumps(victim), json.dumps(HOSTILE)))
    out = tmp_path / "hostile.html"
    assert main(["report", str(folder), "-o", str(out)]) == 0
    assert out.read_text().count("</script><img") == 0
    page.open(out).draw_all()
    shown = page.js("document.querySelector('#slowest .id').textContent")
    assert shown == HOSTILE
    page.do("sglangReport.go({request: arguments[0]})", HOSTILE)
    page.until("!document.getElementById('inspector').hidden")
    assert HOSTILE in page.text("inspector")
    page.reload()
    page.until("sglangReport.timeline.selected !== null")
    assert page.js("sglangReport.timeline.selected.request") == HOSTILE
    assert page.js("document.querySelectorAll('main img').length") == 0
    assert page.complaints() == []


def test_steps_that_were_asked_for_are_in_full_and_the_others_in_the_charts(
    page: Browser, report: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    page.open(report("plateau", "--step", "66", "--spans", "10"))
    assert page.js("[...document.getElementById('step-picker').options].map(one => one.value)") == ["66"]
    assert page.js("sglangReport.facts.steps.length") == 5
    capsys.readouterr()
    assert main(["report", str(DEMO), "--step", "9"]) == 2
    assert "no step 9; there are 2, from 1 to 2" in capsys.readouterr().err


def test_a_report_that_cannot_be_written_is_refused_with_the_correct_form(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for output in (tmp_path, tmp_path / "not" / "there.html"):
        assert main(["report", str(DEMO), "-o", str(output)]) == 2
        assert "must be a file in an existing folder" in capsys.readouterr().err


def test_light_and_dark_differ_and_work_keeps_its_colours(page: Browser, report: Callable[..., Path]) -> None:
    page.open(report("plateau")).draw_all()

    def paper() -> str:
        return str(page.js("getComputedStyle(document.body).backgroundColor"))

    def seen() -> dict[str, Any]:
        return {
            "paper": paper(),
            "dark": page.js("sglangReport.isDark()"),
            "bars": page.js(
                "document.getElementById('chart-steps').data"
                ".filter(one => one.type === 'bar').map(one => [one.name, one.marker.color])"
            ),
        }

    first = seen()
    page.do("document.getElementById('theme').click()")
    page.until(f"getComputedStyle(document.body).backgroundColor !== {first['paper']!r}")
    page.draw_all()
    second = seen()
    assert {first["dark"], second["dark"]} == {True, False}
    assert first["bars"]
    for bars, dark in ((shown_page["bars"], shown_page["dark"]) for shown_page in (first, second)):
        colours = DARK_COLOURS if dark else PART_COLOURS
        assert dict(bars) == {name: colours[name] for name, _ in bars}
    page.reload()
    assert paper() == second["paper"]
    page.do("document.getElementById('theme').click()")
    assert page.complaints() == []


def test_no_line_of_the_pages_code_is_longer_than_one_of_python() -> None:
    scripts = sorted(Path(page_module.__file__).parent.glob("templates/*.js"))
    assert {path.name for path in scripts} == set(page_module.SCRIPTS)
    for path in scripts:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            assert len(line) <= 110, f"{path.name}:{number}"


def test_on_a_full_disk_the_old_report_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs = synthetic_run(tmp_path / "exp", steps=2, workers=1, requests=2, seed=1)
    with small_disk(tmp_path / "small", "2m") as disk:
        report = disk / "report.html"
        report.write_text("the old report")
        (disk / "filler").write_bytes(bytes(shutil.disk_usage(disk).free - 8192))
        assert main(["report", str(logs), "-o", str(report), "--force"]) == 2
        assert "cannot be written: No space left on device" in capsys.readouterr().err
        assert report.read_text() == "the old report"
        assert sorted(path.name for path in disk.iterdir()) == ["filler", "report.html"]
