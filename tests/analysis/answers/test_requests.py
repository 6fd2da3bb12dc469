"""The tables of requests, turns and lengths equal the results of one pass over the lines."""

import json
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from sglang_instrument.analysis import Run, open_run
from sglang_instrument.analysis.answers.lengths import length_table, reward_by_length
from sglang_instrument.analysis.answers.requests import cdf_table, request_table, waterfall
from sglang_instrument.analysis.answers.turns import tool_table, turn_counts, turn_table
from sglang_instrument.testing import synthetic_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthetic_run(tmp_path_factory.mktemp("logs") / "exp", steps=3, workers=2, requests=12)


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    return open_run(folder)


@pytest.fixture(scope="module")
def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for path in folder.rglob("*.jsonl") for text in path.read_text().splitlines()]


def of(lines: list[dict[str, Any]], event: str) -> list[dict[str, Any]]:
    return [line for line in lines if line["event"] == event]


def test_requests_are_those_of_the_log_the_slowest_first(run: Run, lines: list[dict[str, Any]]) -> None:
    table = request_table(run.digest)
    logged = {line["extra"]["request_id"]: line for line in of(lines, "async_rollout_request_complete")}
    assert len(table) == len(logged) == 72
    assert table["duration_sec"].to_list() == sorted(table["duration_sec"], reverse=True)
    for row in table.iter_rows(named=True):
        line = logged[row["request_id"]]
        assert row["duration_sec"] == pytest.approx(line["duration_sec"])
        assert row["turns"] == line["extra"]["turns"]
        assert row["reward"] == line["extra"]["reward"]
        assert row["engine_sec"] == pytest.approx(line["extra"]["total_engine_time"], abs=1e-4)
        parts = sum(row[f"{kind}_sec"] for kind in ("engine", "tool", "interaction", "reward", "other"))
        assert parts == pytest.approx(row["duration_sec"], abs=1e-6)


def test_percentiles_are_those_of_the_durations(run: Run, lines: list[dict[str, Any]]) -> None:
    for row in cdf_table(request_table(run.digest), ["step"]).iter_rows(named=True):
        seconds = [
            line["duration_sec"]
            for line in of(lines, "async_rollout_request_complete")
            if line["step"] == row["step"]
        ]
        quartiles = statistics.quantiles(seconds, n=100, method="inclusive")
        assert row["p50_sec"] == pytest.approx(quartiles[49])
        assert row["p99_sec"] == pytest.approx(quartiles[98])
        assert row["max_sec"] == pytest.approx(max(seconds))


def test_a_waterfall_has_every_span_of_the_request_below_it(run: Run, lines: list[dict[str, Any]]) -> None:
    slowest = request_table(run.digest).row(0, named=True)
    events = waterfall(run.read_spans(slowest["step"], slowest["worker"]), slowest["request_id"])
    logged = [
        line["event"]
        for line in lines
        if (line.get("extra") or {}).get("request_id") == slowest["request_id"] and "duration_sec" in line
    ]
    assert Counter(events["event"]) == Counter(logged)
    assert events["depth"].to_list()[0] == 0
    assert events["depth"].to_list().count(0) == 1
    assert events["start_sec"].is_sorted()


def test_turns_are_those_of_the_log(run: Run, lines: list[dict[str, Any]]) -> None:
    calls = of(lines, "turn_engine_call")
    for row in turn_table(run.digest).iter_rows(named=True):
        mine = [call for call in calls if call["extra"]["turn"] == row["turn"]]
        assert row["requests"] == len(mine)
        assert row["engine_sec"] == pytest.approx(sum(call["duration_sec"] for call in mine))
        assert row["response_tokens"] == sum(call["extra"]["generated_tokens"] for call in mine)
    took = Counter(line["extra"]["turns"] for line in of(lines, "async_rollout_request_complete"))
    assert dict(turn_counts(run.digest).select("turns", "requests").iter_rows()) == took
    tools = tool_table(run.spans).filter(event="tool_call")
    assert tools["count"].sum() == len(of(lines, "tool_call"))


def test_lengths_are_those_of_the_log(run: Run, lines: list[dict[str, Any]]) -> None:
    for row in length_table(run.digest).iter_rows(named=True):
        mine = [
            line["extra"]
            for line in of(lines, "async_rollout_request_complete")
            if line["step"] == row["step"]
        ]
        tokens = [extra["actual_response_tokens"] for extra in mine]
        assert (row["min_tokens"], row["max_tokens"]) == (min(tokens), max(tokens))
        assert row["mean_tokens"] == pytest.approx(statistics.fmean(tokens))
        capped = statistics.fmean(x["finish_reason"] == "length" for x in mine)
        assert row["capped_share"] == pytest.approx(capped)
        assert row["reward"] == pytest.approx(statistics.fmean(extra["reward"] for extra in mine))


def test_tenths_of_the_requests_by_length_cover_all_of_them(run: Run) -> None:
    table = reward_by_length(run.digest)
    assert table["decile"].to_list() == list(range(1, 11))
    assert table["requests"].sum() == 72
    assert table["requests"].max() - table["requests"].min() <= 1
    rows = sorted(run.digest.requests.select("response_tokens", "reward").rows())
    first = [reward for _, reward in rows[: table["requests"][0]]]
    assert table["to_tokens"][0] == rows[len(first) - 1][0]
    error = 1.959964 * statistics.stdev(first) / len(first) ** 0.5
    rewards = [reward for _, reward in rows]
    assert table["reward_at_most"][0] == pytest.approx(min(statistics.fmean(first) + error, max(rewards)))
    assert table["reward_at_most"].max() <= max(rewards)
    assert table["reward_at_least"].min() >= min(rewards)
