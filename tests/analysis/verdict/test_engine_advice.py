"""What the engine's own logs say of a slow engine is in the finding's advice and evidence."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sglang_instrument.analysis import Finding, findings_of, open_run
from sglang_instrument.testing import SlowCalls, SlowEngine, synthetic_run

SLOW = SlowEngine(step=3, worker=2, factor=2.2)
CLOCKS = {0: 0.0, 1: 30.0, 2: -4.0}


def commands(folder: Path) -> str:
    """Return the end of the advice; pytest's folders need no quotes."""
    options = f"workers {folder} --step 3 --worker 2", f"profile capture --run {folder} --workers 2"
    return ", ".join(f"`sglang-instrument {words}`" for words in options)


def slow_run(folder: Path, cause: Any = SLOW, **shape: Any) -> Path:
    return synthetic_run(folder, steps=4, workers=3, requests=12, seed=1, causes=[cause], **shape)


def first(folder: Path, cause: str = "engine") -> Finding:
    finding = findings_of(open_run(folder))[0]
    assert (finding.cause, finding.step, finding.worker) == (cause, 3, 2)
    return finding


def rewrite(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the records of a file."""
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for record in records:
        change(record)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def test_with_queue_and_cache_as_usual_it_is_the_gpu(tmp_path: Path) -> None:
    finding = first(slow_run(tmp_path, engine_clocks=CLOCKS))
    advice = f"queue and cache as usual: look at that GPU (clock, other processes); {commands(tmp_path)}"
    assert finding.advice == advice
    numbers = finding.evidence
    assert numbers["decode_token_sec"] / numbers["others_decode_token_sec"] == pytest.approx(2.2, rel=0.1)
    assert numbers["queue_sec"] == numbers["others_queue_sec"] == 0
    assert numbers["cached"] == numbers["others_cached"] == 0


def test_calls_that_queued_longer_are_no_fault_of_the_gpu(tmp_path: Path) -> None:
    folder = slow_run(tmp_path, engine_clocks=CLOCKS)
    received: dict[str, int] = {}

    def admit_later(record: dict[str, Any]) -> None:
        """Move 60 % of the time from the arrival to the last token into the queue."""
        if record["event"] == "scheduler_receive":
            received[record["extra"]["rid"]] = record["start_us"]
        elif record["event"] in ("scheduler_admit", "scheduler_first_tokens"):
            rid = record["extra"]["rids"][0]
            record["start_us"] = received[rid] + 6 * (ends[rid] - received[rid]) // 10

    ends: dict[str, int] = {}
    for line in (folder / "engine" / "detokenizer_2.jsonl").read_text().splitlines():
        if (record := json.loads(line))["event"] == "engine_detokenize":
            ends[record["extra"]["rids"][0]] = record["start_us"]
    rewrite(folder / "engine" / "scheduler_2.jsonl", admit_later)
    finding = first(folder, cause="queue")
    assert finding.event == "queue"
    assert finding.evidence["server"].endswith("2")
    assert finding.evidence["mean_sec"] > 0.5
    assert "max_running_requests" in finding.advice
    assert "GPU" not in finding.advice


def test_a_cache_that_was_hit_less_is_named(tmp_path: Path) -> None:
    folder = slow_run(tmp_path, engine_clocks=CLOCKS)
    prompts: dict[str, int] = {}
    for rank, share in enumerate((0.54, 0.54, 0.12)):
        for line in (folder / "engine" / f"scheduler_{rank}.jsonl").read_text().splitlines():
            if (record := json.loads(line))["event"] == "scheduler_receive":
                prompts[record["extra"]["rid"]] = record["extra"]["prompt_tokens"]

        def hit(record: dict[str, Any], share: float = share) -> None:
            if record["event"] == "engine_request":
                record["extra"]["cached_tokens"] = round(share * prompts[record["extra"]["rid"]])

        rewrite(folder / "engine" / f"server_{rank}.jsonl", hit)
    finding = first(folder)
    words = (
        "its cache was hit less (12 % against 54 % of the prompts), a token took 2.3 times as long in decode"
    )
    assert finding.advice.startswith(words)
    assert "look at that GPU, and at which requests it gets" in finding.advice
    assert finding.evidence["cached"] == pytest.approx(0.12, abs=0.01)


def test_without_engine_logs_the_advice_names_all_three(tmp_path: Path) -> None:
    finding = first(slow_run(tmp_path))
    assert (
        finding.advice == f"look at its GPU (clock, other processes), queue and cache: {commands(tmp_path)}"
    )
    assert finding.evidence.keys() == {"times", "calls"}


def test_other_findings_stay_as_they_are(tmp_path: Path) -> None:
    cause = SlowCalls(step=3, worker=2, seconds=40.0, calls=3)
    logged = findings_of(open_run(slow_run(tmp_path / "told", cause, engine_clocks=CLOCKS)))
    silent = findings_of(open_run(slow_run(tmp_path / "silent", cause)))
    assert logged
    assert [replace(finding, advice="") for finding in logged] == [
        replace(finding, advice="") for finding in silent
    ]
    assert [finding.advice.split("`")[0] for finding in logged] == [
        finding.advice.split("`")[0] for finding in silent
    ]
