"""What speculative decoding accepts: by step, by length, and a fall over training as a finding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sglang_instrument.analysis import findings_of, open_run, speculation_by_length, speculation_table
from sglang_instrument.cli.main import main
from sglang_instrument.testing import FallingAcceptance, Growth, synthetic_run

SHAPE = {"steps": 10, "workers": 4, "requests": 16}


def causes_of(folder: Path, causes: list[Any]) -> list[str]:
    run = open_run(synthetic_run(folder, causes=causes, **SHAPE))
    return [finding.cause for finding in findings_of(run)]


def record(event: str, start_us: int, sec: float, task: int = 1, **extra: Any) -> str:
    fields = {"timestamp": "2026-01-05T08:00:00+00:00", "event": event, "duration_sec": sec}
    rest = {"workid": 0, "step": 1, "start_us": start_us, "task": task}
    return json.dumps({**fields, "extra": extra, **rest}) + "\n"


def test_tokens_a_verification_by_step_and_by_length(tmp_path: Path) -> None:
    run = open_run(synthetic_run(tmp_path / "exp", causes=[FallingAcceptance(0.25)], **SHAPE))
    rows = speculation_table(run.digest).to_dicts()
    assert [row["step"] for row in rows] == list(range(1, 11))
    assert rows[0]["tokens_per_verification"] == pytest.approx(3.0, rel=0.01)
    assert rows[4]["tokens_per_verification"] == pytest.approx(1.5, rel=0.01)
    turns = run.digest.turns
    assert sum(row["replies"] for row in rows) == len(turns)
    assert sum(row["tokens"] for row in rows) == turns["response_tokens"].sum()
    tenths = speculation_by_length(run.digest).to_dicts()
    assert [row["decile"] for row in tenths] == list(range(1, 11))
    assert sum(row["replies"] for row in tenths) == len(turns)
    assert all(row["from_tokens"] <= row["to_tokens"] for row in tenths)


def test_verifications_of_the_calls_inside_one_are_added_up(tmp_path: Path) -> None:
    folder = tmp_path / "exp" / "step_1"
    folder.mkdir(parents=True)
    lines = [
        record("request", 0, 10.0, request_id="a"),
        record("turn_engine_call", 0, 8.0, request_id="a", turn=0, generated_tokens=90),
        record("engine_generate", 0, 4.0, request_id="a", turn=0, completion_tokens=60, spec_verify_ct=20),
        record("engine_generate", 4_000_000, 4.0, request_id="a", completion_tokens=30, spec_verify_ct=10),
    ]
    (folder / "worker_0.jsonl").write_text("".join(lines))
    [row] = speculation_table(open_run(tmp_path / "exp").digest).to_dicts()
    assert (row["replies"], row["tokens"], row["verifications"]) == (1, 90, 30)
    assert row["tokens_per_verification"] == 3.0


@pytest.mark.parametrize("odd", ["many", -3, 0, None, 1e300, [1]])
def test_an_odd_number_of_verifications_is_not_known(tmp_path: Path, odd: Any) -> None:
    folder = tmp_path / "exp" / "step_1"
    folder.mkdir(parents=True)
    lines = [
        record("request", 0, 10.0, request_id="a"),
        record("engine_generate", 0, 4.0, request_id="a", turn=0, completion_tokens=60, spec_verify_ct=odd),
    ]
    (folder / "worker_0.jsonl").write_text("".join(lines))
    assert speculation_table(open_run(tmp_path / "exp").digest).is_empty()


def test_a_fall_over_training_is_found_and_named_once(tmp_path: Path) -> None:
    run = open_run(synthetic_run(tmp_path / "exp", causes=[FallingAcceptance(0.06)], **SHAPE))
    findings = [
        finding for finding in findings_of(run) if finding.cause in ("speculation", "trend", "engine")
    ]
    assert [finding.cause for finding in findings] == ["speculation"]
    assert findings[0].evidence["first_accepted"] == pytest.approx(3.0, rel=0.02)
    assert findings[0].evidence["times"] == pytest.approx(1 / 1.54, rel=0.1)
    assert "3.0" in findings[0].sentence
    assert "--speculation" in findings[0].advice


def test_speculation_that_stays_as_it_is_accuses_nobody(tmp_path: Path) -> None:
    assert "speculation" not in causes_of(tmp_path / "exp", [FallingAcceptance(0.0)])


def test_an_engine_that_slows_down_for_other_reasons_is_not_blamed_on_speculation(tmp_path: Path) -> None:
    causes = [Growth(0.06), FallingAcceptance(0.0)]
    named = causes_of(tmp_path / "exp", causes)
    assert "trend" in named
    assert "speculation" not in named


def test_the_command_prints_both_tables_and_json(tmp_path: Path, capsys: Any) -> None:
    logs = synthetic_run(tmp_path / "exp", causes=[FallingAcceptance(0.1)], steps=3, workers=1, requests=8)
    assert main(["lengths", str(logs), "--speculation"]) == 0
    said = capsys.readouterr().out
    assert "speculative decoding" in said
    assert "by length" in said
    assert main(["lengths", str(logs), "--speculation", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [row["step"] for row in answer["speculation"]] == [1, 2, 3]
    assert len(answer["by_length"]) == 10
    assert main(["lengths", str(logs), "--json"]) == 0
    assert "speculation" not in json.loads(capsys.readouterr().out)


def test_a_run_without_speculation_says_what_would_record_it(tmp_path: Path, capsys: Any) -> None:
    logs = synthetic_run(tmp_path / "exp", steps=2, workers=1, requests=4)
    assert main(["lengths", str(logs), "--speculation"]) == 0
    assert "--speculative-algorithm" in capsys.readouterr().out
