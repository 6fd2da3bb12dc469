"""Predictions hold where logs lack turns or tokens, and where steps have no requests."""

import json
from dataclasses import replace
from math import log
from pathlib import Path

import polars as pl
import pytest
from queued import Queued

from sglang_instrument.analysis import Digest, Rules, Run, open_run, validation_of, what_if
from sglang_instrument.analysis.changes.replaying.queueing import admissions
from sglang_instrument.cli.main import main
from sglang_instrument.cli.numbers import percent
from sglang_instrument.errors import InstrumentError
from sglang_instrument.testing import synthetic_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return open_run(synthetic_run(tmp_path_factory.mktemp("a"), steps=3, workers=2, requests=8))


def predicted(digest: Digest, times: pl.DataFrame | None = None, **rules: object) -> list[float]:
    return what_if(digest, Rules(**rules), times)["predicted_sec"].to_list()


def without(digest: Digest, *turn_columns: str) -> Digest:
    """Return a digest whose turns do not tell this of their calls."""
    nothing = [pl.lit(None if name == "response_tokens" else 0.0).alias(name) for name in turn_columns]
    turns = digest.turns.with_columns(nothing)
    return replace(digest, turns=turns.cast(dict(digest.turns.schema)))


def test_the_time_of_other_roles_does_not_count_for_the_workers(run: Run) -> None:
    times = run.event_times(["tool_call", "preprocessing_duration"])
    others = times.with_columns(role=pl.lit("trainer"), sec=pl.col("sec") * 100)
    scale = {"tool_call": 0.0, "preprocessing_duration": 0.0}
    expected = predicted(run.digest, times, scale=scale)
    assert predicted(run.digest, pl.concat([times, others]), scale=scale) == expected
    with pytest.raises(InstrumentError, match="tool_call: only trainer has it"):
        predicted(run.digest, others, scale={"tool_call": 0.0})


def test_an_event_in_two_files_of_a_worker_counts_once(run: Run) -> None:
    times = run.event_times(["tool_call"])
    half = times.with_columns(pl.col("sec") / 2)
    scale = {"tool_call": 0.0}
    assert predicted(run.digest, pl.concat([half, half]), scale=scale) == pytest.approx(
        predicted(run.digest, times, scale=scale)
    )


def test_a_kind_and_an_event_of_another_kind_are_scaled_together(run: Run) -> None:
    times = run.event_times(["reward_calculation"])
    both = predicted(run.digest, times, scale={"tool": 0.0, "reward_calculation": 0.0})
    assert both == pytest.approx(predicted(run.digest, scale={"tool": 0.0, "reward": 0.0}), abs=2e-3)


@pytest.mark.parametrize(("event", "kind"), [("tool_call", "tool"), ("main_loop", "engine")])
def test_an_event_is_not_scaled_beside_a_kind_that_it_is_part_of(run: Run, event: str, kind: str) -> None:
    with pytest.raises(InstrumentError, match=f"{event} and {kind} have time in common"):
        predicted(run.digest, run.event_times([event]), scale={event: 0.5, kind: 0.5})


def test_a_name_is_scaled_once_and_a_run_needs_steps(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["whatif", str(run.folder), "--scale", "tool=0", "--scale", "tool=0.5"]) == 2
    assert "tool is scaled twice" in capsys.readouterr().err
    record = {"timestamp": "2026-01-01T00:00:00+00:00", "event": "engine_request", "duration_sec": 1.0}
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "server_0.jsonl").write_text(json.dumps(record) + "\n")
    assert main(["whatif", str(tmp_path), "--scale", "tool_call=0"]) == 2
    assert "no step has a record yet" in capsys.readouterr().err


def test_time_that_is_lost_has_a_sign(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert [percent(share) for share in (-1.0, -0.012, -0.0001, 0.0, 0.5)] == ["-100", "-1.2", "0", "0", "50"]
    assert main(["whatif", str(run.folder), "--scale", "engine=2"]) == 0
    assert " -9" in capsys.readouterr().out


def test_steps_and_workers_without_requests_keep_their_time(run: Run) -> None:
    idle = (pl.col("step") == 2) | ((pl.col("step") == 3) & (pl.col("worker") == 1))
    digest = replace(
        run.digest, **{name: getattr(run.digest, name).filter(~idle) for name in ("requests", "turns")}
    )
    table = what_if(digest, Rules(max_tokens=1))
    assert table["requests"].to_list() == [16, 0, 8]
    assert table["predicted_sec"][1] == table["recorded_sec"][1]
    none = replace(digest, requests=digest.requests.clear(), turns=digest.turns.clear())
    table = what_if(none, Rules(scale={"tool": 0.0}))
    assert table["predicted_sec"].to_list() == table["recorded_sec"].to_list()


def test_tools_without_a_turn_are_scaled(run: Run) -> None:
    known = predicted(run.digest, scale={"tool": 0.0})
    unknown = predicted(without(run.digest, "tool_sec"), scale={"tool": 0.0})
    assert unknown == pytest.approx(known, rel=0.02)
    as_recorded = predicted(without(run.digest, "tool_sec"), max_turns=100)
    assert as_recorded == pytest.approx(what_if(run.digest, Rules())["recorded_sec"].to_list())


def test_tokens_that_only_requests_know_are_shared_over_their_calls(run: Run) -> None:
    digest = without(run.digest, "response_tokens")
    known, unknown = (predicted(each, max_tokens=120) for each in (run.digest, digest))
    assert unknown == pytest.approx(known, rel=0.1)
    assert sum(unknown) < 0.8 * sum(predicted(digest, max_turns=100))
    nothing = replace(
        digest, requests=digest.requests.with_columns(response_tokens=pl.lit(None, dtype=pl.Int64))
    )
    with pytest.raises(InstrumentError, match="no tokens are logged"):
        predicted(nothing, max_tokens=100)


def test_dealt_anew_a_step_takes_as_long_as_its_longest_request_not_as_its_last_end(tmp_path: Path) -> None:
    digest = open_run(Queued(steps=1, workers=2, requests=4).write(tmp_path)).digest
    late = pl.when(pl.col("worker") == 1).then(10_000_000).otherwise(0)
    tables = {
        name: getattr(digest, name).with_columns(pl.col("start_us", "end_us") + late)
        for name in ("requests", "turns")
    }
    steps = digest.steps.with_columns(duration_sec=pl.col("duration_sec") + late / 1e6)
    table = what_if(replace(digest, steps=steps, **tables), Rules(rebalance=True))
    busy = steps["duration_sec"] - steps["barrier_sec"]
    assert table["predicted_sec"][0] == pytest.approx(max(busy.mean(), digest.requests["duration_sec"].max()))


def test_a_validation_leaves_out_a_cold_first_step_and_steps_without_a_duration(tmp_path: Path) -> None:
    recorded = open_run(Queued(seed=1, steps=6).write(tmp_path / "recorded")).digest
    real = open_run(Queued(seed=1, steps=6, first_step=3.0).write(tmp_path / "real")).digest
    validation = validation_of(what_if(recorded, Rules()), real)
    assert (validation["steps"], validation["ratio"]) == (5, pytest.approx(1.0))
    table = what_if(recorded, Rules()).with_columns(
        predicted_sec=pl.when(pl.col("step") == 4).then(0.0).otherwise("predicted_sec")
    )
    assert validation_of(table, real)["steps"] == 4
    with pytest.raises(InstrumentError, match="no step in common with a duration"):
        validation_of(table.with_columns(predicted_sec=pl.lit(0.0)), real)


def test_an_engine_with_a_limit_admits_calls_in_their_order() -> None:
    assert admissions([0, 1, 2, 3], [10, 4, 12, 20], None) == [0, 1, 2, 3]
    assert admissions([0, 1, 2, 3], [10, 4, 12, 20], 2) == [0, 1, 4, 10]
    assert admissions([0, 1], [10, 4], 1) == [0, 4]  # it ended before the first one did: the limit is wrong


def test_calls_that_wait_beyond_a_limit_are_not_taken_for_slow_ones(tmp_path: Path) -> None:
    """16 of 48 calls run at once: without the limit, caps were predicted 15 % too long."""
    shape = {"seed": 3, "steps": 2, "load_sec": 0.001}
    recorded = open_run(Queued(limit=16, **shape).write(tmp_path / "recorded")).digest
    real = open_run(Queued(limit=16, most_tokens=100, **shape).write(tmp_path / "real")).digest
    validation = validation_of(what_if(recorded, Rules(max_turn_tokens=100)), real)
    assert abs(log(validation["ratio"])) < 0.02
