"""The report has sections on stale samples, weight updates and tokens thrown away, if the log does."""

import re
from pathlib import Path

import pytest
from async_run import AsyncRun, sample
from hand_written import request as request_record
from hand_written import step_of, write_file
from planted_weights import run_with_updates

from sglang_instrument.cli.main import main
from sglang_instrument.testing import synthetic_run

HOSTILE = "<img src=x onerror=alert(1)>"
SECTIONS = ("staleness", "waste", "weights")


def sections(folder: Path, page: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Return the sections of the report, each of which the page's index names."""
    assert main(["report", str(folder), "--out", str(page)]) == 0
    capsys.readouterr()
    text = page.read_text()
    markup_by_name = {
        name: match[0]
        for name in SECTIONS
        if (match := re.search(rf'<section id="{name}".*?</section>', text, re.DOTALL))
    }
    assert all((f'href="#{name}"' in text) == (name in markup_by_name) for name in SECTIONS)
    return markup_by_name


def cells(section: str) -> list[list[str]]:
    return [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall(r"<tr><td.*?</tr>", section)]


def test_stale_samples_and_thrown_away_tokens_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = AsyncRun(steps=5)
    run.rollouts[1] += sample("old", 10, 12, weight_version=1, first_weight_version=1)
    run.rollouts[1] += sample("cut", 10, 12, response_length=30, finish_reason="abort")
    run.take(5, ["old"])
    shown = sections(run.write(tmp_path / "run"), tmp_path / "page.html", capsys)
    assert shown.keys() == {"staleness", "waste"}
    assert [row[:7] for row in cells(shown["staleness"])][-1] == ["5", "7", "5", "1.43", "3.82", "4", "1"]
    first, *_, last = cells(shown["waste"])
    assert first == ["1", "630", "95 %", "0 %", "4.8 %", "–", "0 %", "–", "–", "–", "0 %", "0 %"]  # noqa: RUF001
    assert last[:2] == ["all", "3,030"]
    assert "30 of 3,030 generated tokens were thrown away: 1.0 %" in shown["waste"]
    assert "No <code>samples_dropped</code> with the reason filtered or stale or truncated" in shown["waste"]


def test_each_update_has_a_row_and_replies_are_shown_by_their_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run_with_updates(tmp_path / "run", seed=1, keeps_cache=True, slow_sec=2.0)
    shown = sections(folder, tmp_path / "page.html", capsys)
    assert shown.keys() == {"weights"}
    rows = cells(shown["weights"])
    assert [row[:2] for row in rows[:4]] == [[str(number), str(number)] for number in range(1, 5)]
    assert [row[-2:] for row in rows[:4]] == [["scheduler_1", "2.00 s"]] * 4
    assert next(row for row in rows[4:] if row[0] == "2")[4:7] == ["840", "840", "840"]


def test_a_run_whose_log_tells_nothing_of_them_has_no_such_section(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = synthetic_run(tmp_path / "run", steps=1, workers=1, requests=3)
    assert sections(folder, tmp_path / "page.html", capsys) == {}


def test_a_run_that_logs_no_turns_has_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_file(tmp_path / "run", 1, 0, step_of(request_record("a", 0, 4, response_length=10)))
    assert sections(tmp_path / "run", tmp_path / "page.html", capsys) == {}


def test_names_that_a_log_gives_are_shown_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run_with_updates(tmp_path / "run", seed=1)
    for path in folder.glob("engine/scheduler_*.jsonl"):
        path.write_text(path.read_text().replace('"weight_version": "2"', f'"weight_version": "{HOSTILE}"'))
    shown = sections(folder, tmp_path / "page.html", capsys)
    assert "&lt;img src=x" in shown["weights"]
    assert HOSTILE not in shown["weights"]
