"""The report of a run too large to be read at once: all steps in a row each, some of them in detail."""

import json

import pytest
from axe import axe_source, violations
from browser import browser

from sglang_instrument.analysis import open_run
from sglang_instrument.analysis.ledger.ledger import step_windows
from sglang_instrument.analysis.long_runs import pieces
from sglang_instrument.analysis.long_runs.pieces import large_run
from sglang_instrument.analysis.long_runs.some_steps import only_steps, open_steps, steps_worth_reading
from sglang_instrument.analysis.long_runs.summary import summarise
from sglang_instrument.cli.main import main
from sglang_instrument.testing import SlowEngine, synthetic_run

STEPS, WORKERS = 60, 3
FACTS = """
(() => {
    const {steps, lengths, turns, findings} = sglangReport.facts;
    const durations = steps.map(row => [row.key, row.duration_sec]);
    return {durations, lengths: lengths.steps, turns: turns.turns, causes: findings.map(one => one.cause)};
})()
"""
SCOPES = """
[...document.querySelectorAll('.scope')]
    .map(one => [(one.closest('section') || {}).id || '', one.textContent])
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run in which one worker's engine is slow in one step, with validations."""
    slow = SlowEngine(step=41, worker=1, factor=6.0)
    shape = {"steps": STEPS, "workers": WORKERS, "requests": 4, "validate_every": 20}
    return synthetic_run(tmp_path_factory.mktemp("large") / "exp", **shape, causes=[slow], seed=3)


@pytest.fixture
def too_large(monkeypatch):
    """Let a run of more than 120 files be too large."""
    monkeypatch.setattr(pieces, "MOST_FILES", 120)


@pytest.fixture(scope="module")
def reports(run):
    """The report of the run as a whole, and as if it were too large."""
    folder = run.parent
    assert main(["report", str(run), "-o", str(folder / "whole.html")]) == 0
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(pieces, "MOST_FILES", 120)
        assert main(["report", str(run), "-o", str(folder / "some.html")]) == 0
    return folder / "whole.html", folder / "some.html"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


def test_all_steps_are_those_of_the_whole_and_some_are_read_in_detail(page, reports):
    expected, facts = (page.open(path).js(FACTS) for path in reports)
    assert dict(facts["durations"]) == pytest.approx(dict(expected["durations"]))
    assert facts["lengths"] == expected["lengths"]
    assert facts["causes"] == expected["causes"]
    in_detail, in_all = (rows["turns"][0]["requests"] for rows in (facts, expected))
    assert 0 < in_detail < in_all
    assert page.complaints() == []


def test_the_page_says_of_which_steps_it_is(page, reports):
    whole, some = reports
    assert page.open(whole).js(SCOPES) == []
    sections, words = zip(*page.open(some).js(SCOPES), strict=True)
    assert words[0].startswith("The log is too large to be read at once.")
    assert {"Of 19 of the 60 steps.", "The rewards are of 19 of the 60 steps."} == set(words[1:])
    assert {"durations", "turns", "timeline"} < set(sections)
    assert "steps" not in sections


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_no_violation(page, reports, theme):
    page.open(reports[1]).do(f"sglangReport.setTheme('{theme}')").draw_all()
    assert violations(page, axe_source()) == []


def test_a_step_that_is_asked_for_is_read(run, too_large, tmp_path, capsys):
    path = tmp_path / "asked.html"
    assert main(["report", str(run), "-o", str(path), "--step", "17", "--json"]) == 0
    assert "17" in json.loads(capsys.readouterr().out)["steps"]


def test_a_step_that_is_not_there_is_refused(run, too_large, tmp_path, capsys):
    assert main(["report", str(run), "-o", str(tmp_path / "none.html"), "--step", "77"]) == 2
    assert "no step 77; there are 60, the nearest: 58, 59, 60" in capsys.readouterr().err


def test_what_a_setting_saves_is_simulated_on_steps_at_equal_distances(run, too_large):
    large = large_run(run, None, by_step=True)
    summary = summarise(large)
    chosen = steps_worth_reading(large, summary, [3])
    assert {3, 4, 1, STEPS} <= set(chosen.steps)
    assert {16, 17, 31, 32, 46, 47} <= set(chosen.spread) < set(chosen.steps)
    part = open_steps(large, summary, chosen.steps)
    assert only_steps(part, chosen.spread).steps == chosen.spread


def test_the_time_until_the_next_step_is_that_of_the_whole_run(run, too_large):
    expected = open_run(run, cached=False)
    large = large_run(run, None, by_step=True)
    part = open_steps(large, summarise(large), [5, 6, 17, 41])
    rows = {row["step"]: row["to_next_step_sec"] for row in of_training(part)}
    for row in of_training(expected):
        if row["step"] == 5:
            assert rows[5] == pytest.approx(row["to_next_step_sec"])
    assert sorted(rows) == [5, 6, 17, 41]
    assert max(rows.values()) < 2 * max(row["to_next_step_sec"] for row in of_training(expected))


def of_training(run):
    return step_windows(run.digest).filter(validate=False).to_dicts()
