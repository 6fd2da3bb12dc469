"""The estimated duration of a step under other rules equals a computation request by request."""

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from queued import runs_made_once

from sglang_instrument.analysis import Digest, Rules, Run, open_run, step_table, validation_of, what_if
from sglang_instrument.analysis.changes.replaying.rules import kept_shares
from sglang_instrument.analysis.changes.whatif import Model
from sglang_instrument.analysis.ledger.engine_speed import EngineSpeed, engine_calls, fit_speed
from sglang_instrument.testing import synthetic_run

RunOf = Callable[..., Run]


@pytest.fixture(scope="module")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> RunOf:
    """Return a run that is drawn from these fields of `Queued`."""
    return runs_made_once(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def digest(tmp_path_factory: pytest.TempPathFactory) -> Digest:
    return open_run(synthetic_run(tmp_path_factory.mktemp("a"), steps=5, workers=3, requests=20)).digest


def test_without_rules_nothing_changes(digest: Digest) -> None:
    for row in what_if(digest, Rules()).iter_rows(named=True):
        assert row["predicted_sec"] == pytest.approx(row["recorded_sec"])
        assert row["ended_early"] == 0


def test_oversampling_drops_the_last_ones_of_each_worker(digest: Digest) -> None:
    for row in what_if(digest, Rules(oversample=0.25)).iter_rows(named=True):
        assert row["ended_early"] == 3 * 4
        assert row["predicted_sec"] < row["recorded_sec"]


def test_a_cap_of_seconds_bounds_every_step(digest: Digest) -> None:
    for row in what_if(digest, Rules(max_seconds=5.0)).iter_rows(named=True):
        assert row["predicted_sec"] == pytest.approx(5.0, abs=0.2)
        assert row["ended_early"] > 0


def test_an_engine_that_takes_no_time_leaves_tools_and_the_rest(digest: Digest) -> None:
    for row in what_if(digest, Rules(scale={"engine": 0.0})).iter_rows(named=True):
        assert 0 < row["predicted_sec"] < 5
        assert row["ended_early"] == 0


def test_an_event_that_is_gone_takes_its_time_out_of_each_request(tmp_path: Path) -> None:
    run = open_run(synthetic_run(tmp_path, steps=2, workers=2, requests=8))
    times = run.event_times(["tool_call", "preprocessing_duration"])
    without = what_if(run.digest, Rules(scale={"tool_call": 0.0, "preprocessing_duration": 0.0}), times)
    kind = what_if(run.digest, Rules(scale={"tool": 0.0}))
    for by_event, by_kind in zip(without.iter_rows(named=True), kind.iter_rows(named=True), strict=True):
        # Preprocessing takes 30 ms to 80 ms; the kind has, beside the calls, some milliseconds around them.
        assert 0.02 < by_kind["predicted_sec"] - by_event["predicted_sec"] < 0.09
    with pytest.raises(ValueError, match="tool_call"):
        what_if(run.digest, Rules(scale={"tool_call": 0.0}))


def test_tools_side_by_side_count_once_in_the_time_of_their_event(tmp_path: Path) -> None:
    run = open_run(synthetic_run(tmp_path, steps=2, workers=2, requests=8))
    calls = run.event_times(["tool_call", "tool_execution"])
    by_event = calls.pivot("event", index=["step", "worker", "request_id"], values="sec")
    assert (by_event["tool_call"] <= by_event["tool_execution"] + 1e-5).all()
    assert (by_event["tool_execution"] - by_event["tool_call"] < 1e-3).all()


def test_requests_dealt_anew_never_take_longer_nor_less_than_the_longest(digest: Digest) -> None:
    longest = dict(digest.requests.group_by("step").agg(pl.col("duration_sec").max()).iter_rows())
    for row in what_if(digest, Rules(rebalance=True)).iter_rows(named=True):
        assert longest[row["step"]] - 1e-9 <= row["predicted_sec"] <= row["recorded_sec"] + 1e-9


#: A rule, and how a run is made in which it is real.
REAL = {
    "a slower engine": (Rules(scale={"engine": 1.5}), {"engine": 1.5}),
    "faster tools": (Rules(scale={"tool": 0.2}), {"tool": 0.2}),
    "slower tools": (Rules(scale={"tool": 3.0}), {"tool": 3.0}),
    "shorter replies": (Rules(max_turn_tokens=150), {"most_tokens": 150}),
}
ENGINES = {
    "with prefill": {"prefill_sec": 0.4, "load_sec": 0.0},
    "slower with more calls": {"load_sec": 0.002},
    "of all workers": {"workers": 3, "load_sec": 0.001, "shared": True},
    "with a queue": {"load_sec": 0.001, "limit": 5},
    "of all workers, with a queue": {"workers": 3, "load_sec": 0.001, "shared": True, "limit": 12},
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("rule", REAL)
def test_a_prediction_is_what_a_run_under_the_rule_takes(run_of: RunOf, engine: str, rule: str) -> None:
    rules, change = REAL[rule]
    shape = {"seed": 7, "steps": 4, "requests": 16, **ENGINES[engine]}
    model = Model(run_of(**shape).digest)
    real = run_of(**shape, **change).digest
    both = model.predict(rules).join(step_table(real), on=["step", "validate"])
    ratios = both["predicted_sec"] / both["busy_sec"]
    # In a queue, milliseconds decide which call is next: a step of few requests may be off by some percent.
    error = 0.07 if "limit" in shape else 0.02
    assert 1 - error < ratios.min() <= ratios.max() < 1 + error
    assert ratios.mean() == pytest.approx(1.0, abs=error / 2)
    assert model.fit.speed.shared == shape.get("shared", False) or not shape["load_sec"]
    assert model.limit == shape.get("limit")


def test_with_the_true_speed_a_prediction_is_exact(run_of: RunOf) -> None:
    shape = {"steps": 2, "workers": 2, "requests": 12, "load_sec": 0.002, "context_sec": 0.0, "jitter": 0.0}
    speed = EngineSpeed(call_sec=0.08, token_sec=0.01, crowd_sec=0.002)
    model = Model(run_of(**shape).digest, speed)
    for rules, change in REAL.values():
        real = run_of(**shape, **change).digest
        predicted = model.predict(rules)["predicted_sec"].to_list()
        assert predicted == pytest.approx(step_table(real)["busy_sec"].to_list(), abs=5e-3)


def test_the_speed_of_an_engine_is_found_from_its_calls(run_of: RunOf) -> None:
    digest = run_of(steps=6, load_sec=0.001, context_sec=0.0005).digest
    fit = fit_speed(engine_calls(digest))
    prompt_tokens = 140  # on average
    assert fit.speed.call_sec == pytest.approx(0.08 + 0.0005 * prompt_tokens, rel=0.5)
    assert fit.speed.context_sec == pytest.approx(0.0005, rel=0.25)
    assert fit.speed.token_sec == pytest.approx(0.01, rel=0.1)
    assert fit.speed.crowd_sec == pytest.approx(0.001, rel=0.1)
    assert fit.error is not None
    assert 0.01 < fit.error < 0.06


def test_a_prediction_is_held_against_a_run_with_other_replies(run_of: RunOf) -> None:
    recorded = run_of(seed=1, steps=6).digest
    real = run_of(seed=2, steps=6, engine=0.5).digest
    validation = validation_of(what_if(recorded, Rules(scale={"engine": 0.5})), real)
    assert validation["steps"] == 6
    assert validation["ratio_at_least"] < 1 < validation["ratio_at_most"]
    assert validation["ratio"] == pytest.approx(validation["predicted_sec"] / validation["real_sec"])


def test_a_reply_that_is_as_long_as_the_cap_ends_its_request() -> None:
    # SGLang says "length" of it, as of one that is cut.
    assert kept_shares([100, 50], Rules(max_turn_tokens=100)) == [1.0, 0.0]
    assert kept_shares([99, 50], Rules(max_turn_tokens=100)) == [1.0, 1.0]
    assert kept_shares([200, 50], Rules(max_turn_tokens=100)) == [0.5, 0.0]
