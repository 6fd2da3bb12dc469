"""Calls of a reward server are a row of `turns --tools`: how long, how many at once, and the queue."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.request import Request, urlopen

import polars as pl
import pytest
from reward_server import reward_server

from sglang_instrument import bind, flush, instrument, step
from sglang_instrument.analysis.answers.turns import tool_table
from sglang_instrument.cli.main import main

_SECOND_US = 1_000_000


def calls(*times: tuple[float, float], event: str = "judge", phase: str = "reward") -> pl.DataFrame:
    """Return spans from their begin and duration in seconds."""
    name = {"event": event, "tool": None, "phase": phase}
    rows = [{**name, "start_us": int(begin * _SECOND_US), "duration_sec": sec} for begin, sec in times]
    types = {"event": pl.String, "tool": pl.String, "phase": pl.String}
    return pl.DataFrame(rows, schema_overrides=types)


def test_what_is_in_flight_at_once_is_counted_by_name() -> None:
    others = calls((0.0, 9.0), (0.0, 9.0), event="calculator", phase="tool")
    table = tool_table(pl.concat([calls((0.0, 2.0), (1.0, 2.0), (5.0, 1.0)), others]))
    by_event = {row["event"]: row for row in table.to_dicts()}
    # 5 s of calls in 4 s; the third begins alone.
    assert by_event["judge"]["mean_in_flight"] == pytest.approx(5 / 4)
    assert by_event["judge"]["most_in_flight"] == 2
    assert by_event["calculator"]["mean_in_flight"] == pytest.approx(2)
    assert by_event["judge"]["queue_sec"] is None  # too few


def test_the_queue_is_what_calls_take_longer_among_many() -> None:
    # A server that answers one after the other in a second: calls alone, then eight at once.
    alone = [(20.0 * number, 1.0) for number in range(8)]
    together = [(200.0, 1.0 + number) for number in range(8)]
    (row,) = tool_table(calls(*alone, *together)).to_dicts()
    assert row["most_in_flight"] == 8
    assert row["queue_sec"] == pytest.approx(4.0, abs=0.5)


def test_calls_of_ones_own_to_a_real_server_have_their_row(
    install: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = install()

    @instrument("judge", phase="reward")
    def judge(address: str, reply: str) -> float:
        with urlopen(Request(address, json.dumps({"response": reply}).encode())) as answer:
            return float(json.load(answer))

    def score(number: int) -> float:
        with step(1), bind(request_id=f"r{number}"):
            return judge(address, "reply")

    with reward_server(sec=0.02) as address, ThreadPoolExecutor(16) as threads:
        assert set(threads.map(score, range(32))) == {0.25}
    assert flush(60)
    assert main(["turns", str(folder), "--tools", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["tools"]
    assert (row["event"], row["count"]) == ("judge", 32)
    assert 2 <= row["mean_in_flight"] <= row["most_in_flight"] <= 16
    assert row["queue_sec"] > 0  # the server answers one at a time
