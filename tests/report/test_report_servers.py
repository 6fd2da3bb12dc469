"""The report has a section on servers where the log names them."""

import re
from pathlib import Path

import pytest
from routed_run import RoutedRun

from sglang_instrument.cli.main import main
from sglang_instrument.testing import synthetic_run

HOSTILE = "<img src=x onerror=alert(1)>"


def section(folder: Path, capsys: pytest.CaptureFixture[str]) -> str | None:
    page = folder.with_suffix(".html")
    assert main(["report", str(folder), "--out", str(page)]) == 0
    capsys.readouterr()
    text = page.read_text()
    match = re.search(r'<section id="servers".*?</section>', text, re.DOTALL)
    assert ('href="#servers"' in text) == (match is not None)
    return match and match[0]


def test_each_server_has_a_row_and_the_sentences_say_where_conversations_went(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RoutedRun(policy="round_robin", servers=3, steps=2)
    shown = section(run.write(tmp_path / "run"), capsys)
    assert shown is not None
    rows = re.findall(r"<tr><td>(server_\d)</td><td>([\d,]+)</td>", shown)
    assert rows == [(name, str(run.truth[name]["calls"])) for name in sorted(run.truth)]
    assert "later calls" in shown
    assert "tokens that a server had seen before were read again" in shown


def test_without_a_known_server_there_is_no_section(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert section(RoutedRun(engines=False, steps=1).write(tmp_path / "rid"), capsys) is None
    assert section(synthetic_run(tmp_path / "run", steps=1, workers=1, requests=3), capsys) is None


def test_the_name_of_a_server_is_shown_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = RoutedRun(callers="areal", engines=False, steps=1).write(tmp_path / "run")
    for path in folder.rglob("worker_*.jsonl"):
        path.write_text(path.read_text().replace("10.0.0.1:30000", HOSTILE))
    shown = section(folder, capsys)
    assert shown is not None
    assert "&lt;img src=x" in shown
    assert HOSTILE not in shown
