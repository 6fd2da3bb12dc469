"""Engine calls without a turn's number: those after one another are turns, those that overlap are one."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sglang_instrument.analysis import open_run

BEGUN_US = 1_767_600_000_000_000
TICK_US = 100_000
#: (start, length, tokens) of the calls of a request, in ticks.
calls = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 9), st.integers(0, 20)), min_size=1, max_size=8)


def line(event: str, start: int, end: int, task: int, **extra: Any) -> str:
    return json.dumps(
        {
            "timestamp": "2026-01-05T08:00:00+00:00",
            "event": event,
            "duration_sec": (end - start) * TICK_US / 1e6,
            "extra": extra,
            "workid": 0,
            "step": 1,
            "start_us": BEGUN_US + start * TICK_US,
            "task": task,
        }
    )


def turns_in(folder: Path, made: list[tuple[int, int, int]], **more: Any) -> list[dict[str, Any]]:
    """Write a request with these calls, each in a task of its own, and return the rows of its turns."""
    path = folder / "step_1/worker_0.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [
        line(
            "engine_generate",
            start,
            start + length,
            2 + number,
            request_id="a",
            generated_tokens=tokens,
            **more,
        )
        for number, (start, length, tokens) in enumerate(made)
    ]
    lines.append(line("async_rollout_request_complete", 0, 50, 1, request_id="a"))
    path.write_text("\n".join([*lines, line("total_step_duration", 0, 50, 0)]) + "\n")
    return open_run(folder, cached=False).digest.turns.sort("turn").to_dicts()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(calls)
def test_turns_are_the_groups_of_calls_that_overlap(tmp_path: Path, made: list[tuple[int, int, int]]) -> None:
    groups: list[tuple[set[int], int]] = []  # the ticks in which a call ran, and the tokens of all calls
    for start, length, tokens in sorted(made):
        ticks = set(range(start, start + length))
        if groups and start <= max(groups[-1][0]):
            groups[-1] = (groups[-1][0] | ticks, groups[-1][1] + tokens)
        else:
            groups.append((ticks, tokens))
    rows = turns_in(tmp_path, made)
    assert [row["response_tokens"] for row in rows] == [tokens for _, tokens in groups]
    assert [row["engine_sec"] for row in rows] == pytest.approx(
        [len(ticks) * TICK_US / 1e6 for ticks, _ in groups]
    )
    assert [row["turn"] for row in rows] == list(range(len(groups)))


def test_calls_with_a_number_belong_to_that_turn(tmp_path: Path) -> None:
    rows = turns_in(tmp_path, [(0, 5, 7), (1, 5, 8)], turn=3)
    assert [row["turn"] for row in rows] == [3]
