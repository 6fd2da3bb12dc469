"""Setting environments up and taking them down is a part of a step of its own, wherever parts are told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sglang_instrument.analysis import open_run, step_ledger
from sglang_instrument.cli.main import main
from sglang_instrument.report.palette import DARK_COLOURS, PART_COLOURS, part_of
from sglang_instrument.schema import PHASES, WATCHED_PHASES, kind_of
from sglang_instrument.testing import records


def write(folder: Path) -> Path:
    """Write a step of one request: a tool of 6 s, of which 4 s are its sandbox, set up and taken down."""
    spans = [
        ("total_step_duration", 0, 10.0, 1, {}),
        ("async_rollout_request_complete", 0, 10.0, 1, {"request_id": "a", "turns": 1}),
        ("turn_engine_call", 0, 2.0, 1, {"request_id": "a", "turn": 0, "generated_tokens": 9}),
        ("tool_call", 2, 6.0, 1, {"request_id": "a", "turn": 0, "tool": "shell"}),
        ("tool_creation", 2, 3.0, 1, {"request_id": "a", "turn": 0}),
        ("tool_release", 7, 1.0, 1, {"request_id": "a", "turn": 0}),
    ]
    path = folder / "step_1" / "worker_0.jsonl"
    path.parent.mkdir(parents=True)
    base = 1767600000000000
    lines = [
        {
            "timestamp": "2026-01-05T08:00:00+00:00",
            "event": event,
            "duration_sec": sec,
            "extra": extra,
            "workid": 0,
            "step": 1,
            "start_us": base + start * 1_000_000,
            "task": task,
        }
        for event, start, sec, task, extra in reversed(spans)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_the_ledger_and_the_shares_have_its_seconds(tmp_path: Path) -> None:
    run = open_run(write(tmp_path / "exp"))
    parts: dict[str, float] = {}
    for row in step_ledger(run.digest).to_dicts():
        parts[row["part"]] = parts.get(row["part"], 0.0) + row["sec"]
    assert parts["environment"] == pytest.approx(4.0)
    assert parts["tool"] == pytest.approx(2.0)
    assert parts["engine"] == pytest.approx(2.0)
    [step] = run.digest.steps.to_dicts()
    assert step["wall_environment"] == pytest.approx(4.0)
    [request] = run.digest.requests.to_dicts()
    assert request["tool_sec"] == pytest.approx(6.0)  # the whole call, as it was before


def test_summary_shows_it_as_a_column(tmp_path: Path, capsys: Any) -> None:
    assert main(["summary", str(write(tmp_path / "exp"))]) == 0
    assert "environment" in capsys.readouterr().out
    assert main(["events", str(tmp_path / "exp")]) == 0
    assert "tool_creation" in capsys.readouterr().out


def test_the_vocabulary_knows_it_and_a_set_up_that_hangs_is_watched() -> None:
    names = ("tool_creation", "tool_release", "tool_creation_pending_state", "environment_setup")
    assert {kind_of(name).phase for name in (*names, "environment_reset", "environment_teardown")} == {
        "environment"
    }
    assert "environment" in PHASES
    assert "environment" in WATCHED_PHASES
    assert part_of("environment") == "environment"
    assert "environment" in PART_COLOURS
    assert len(set(DARK_COLOURS.values())) == len(DARK_COLOURS)


def test_a_span_of_ones_own_can_have_this_phase() -> None:
    import sglang_instrument

    with records() as seen, sglang_instrument.span("load_map", phase="environment"):
        pass
    [record] = [record for record in seen if record["event"] == "load_map"]
    assert record["phase"] == "environment"
