"""The tables of requests, turns, lengths and what-if equal those of plain loops over made-up requests."""

import json
import math
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_instrument.analysis import Rules, Run, length_table, open_run, request_table, turn_table
from sglang_instrument.analysis.changes.whatif import Model
from sglang_instrument.analysis.ledger.engine_speed import EngineSpeed

EPOCH_US = 1_767_600_000_000_000
TICK_US = 100_000
MARGIN = 2  # ticks of a step before its first request and after its last


class Turn(NamedTuple):
    """Ticks in the engine and in a tool (0 is none), and the tokens written."""

    engine: int
    tokens: int
    tool: int


class Request(NamedTuple):
    """A request; times in ticks, `begin` since the start of its worker's step."""

    begin: int
    turns: tuple[Turn, ...]
    reward: int
    cut: bool

    @property
    def ticks(self) -> int:
        return sum(turn.engine + turn.tool for turn in self.turns) + self.reward

    @property
    def tokens(self) -> int:
        return sum(turn.tokens for turn in self.turns)


turns = st.builds(Turn, st.integers(1, 9), st.integers(1, 40), st.sampled_from([0, 0, 3, 7]))
requests = st.builds(
    Request,
    st.integers(0, 20),
    st.lists(turns, min_size=1, max_size=4).map(tuple),
    st.integers(0, 3),
    st.booleans(),
)
#: Requests by step and worker; some workers are missing, some steps of workers are empty.
made_runs = st.dictionaries(
    st.tuples(st.integers(1, 3), st.integers(0, 2)), st.lists(requests, max_size=5), min_size=1
).filter(lambda made: any(made.values()))
Made = dict[tuple[int, int], list[Request]]


def length(mine: list[Request]) -> int:
    return max((request.begin + request.ticks for request in mine), default=0) + 2 * MARGIN


def write(folder: Path, made: Made) -> None:
    for (step, worker), mine in made.items():
        spans: list[tuple[str, int, int, int, dict[str, Any] | None]] = []
        for number, request in enumerate(mine):
            ids = {"request_id": f"{step}.{worker}.{number}"}
            now = begin = MARGIN + request.begin
            for turn_number, turn in enumerate(request.turns):
                fields = {**ids, "turn": turn_number, "generated_tokens": turn.tokens}
                spans.append(("turn_engine_call", now, now + turn.engine, 1 + number, fields))
                now += turn.engine
                if turn.tool:
                    of_turn = {**ids, "turn": turn_number}
                    spans.append(("tool_execution", now, now + turn.tool, 1 + number, of_turn))
                    now += turn.tool
            if request.reward:
                spans.append(("reward_calculation", now, now + request.reward, 1 + number, ids))
            reason = "length" if request.cut else "stop"
            of_request = {
                **ids,
                "turns": len(request.turns),
                "actual_response_tokens": request.tokens,
                "finish_reason": reason,
            }
            spans.append(
                ("async_rollout_request_complete", begin, begin + request.ticks, 1 + number, of_request)
            )
        spans.append(("total_step_duration", 0, length(mine), 0, None))
        path = folder / f"step_{step}" / f"worker_{worker}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            "".join(line(step, worker, *span) for span in sorted(spans, key=lambda span: span[2]))
        )


def line(
    step: int, worker: int, event: str, start: int, end: int, task: int, extra: dict[str, Any] | None
) -> str:
    times = {"duration_sec": (end - start) * TICK_US / 1e6, "start_us": EPOCH_US + start * TICK_US}
    ids = {"workid": worker, "step": step, "task": task, **({"spawned_by": 0} if task else {})}
    fields = {} if extra is None else {"extra": extra}
    stamp = {"timestamp": "2026-01-05T08:00:00.000000+00:00"}
    return json.dumps({**stamp, "event": event, **times, **fields, **ids}) + "\n"


def read(made: Made) -> Run:
    with TemporaryDirectory() as folder:
        write(Path(folder), made)
        return open_run(folder)


def sec(ticks: float) -> Any:
    return pytest.approx(ticks * TICK_US / 1e6, abs=1e-5)


def sec_if_any(made: Made, ticks: Callable[[Request], int], mine: int) -> Any:
    """Return the seconds of some requests in a kind of work; None if no request of the run does such work."""
    return sec(mine) if any(ticks(request) for each in made.values() for request in each) else None


def tool_ticks(request: Request) -> int:
    return sum(turn.tool for turn in request.turns)


def reward_ticks(request: Request) -> int:
    return request.reward


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
    return low + (high - low) * (place - math.floor(place))


@settings(max_examples=15, deadline=None)
@given(made_runs)
def test_each_request_is_the_sum_of_its_parts(made: Made) -> None:
    table = {row["request_id"]: row for row in request_table(read(made).digest).iter_rows(named=True)}
    assert len(table) == sum(map(len, made.values()))
    for (step, worker), mine in made.items():
        for number, request in enumerate(mine):
            row = table[f"{step}.{worker}.{number}"]
            assert (row["step"], row["worker"], row["turns"]) == (step, worker, len(request.turns))
            assert row["response_tokens"] == request.tokens
            assert row["duration_sec"] == sec(request.ticks)
            assert row["engine_sec"] == sec(sum(turn.engine for turn in request.turns))
            assert row["tool_sec"] == sec_if_any(made, tool_ticks, tool_ticks(request))
            assert row["reward_sec"] == sec_if_any(made, reward_ticks, request.reward)
            assert row["other_sec"] == sec(0)


@settings(max_examples=15, deadline=None)
@given(made_runs)
def test_turns_are_counted_and_summed_by_their_number(made: Made) -> None:
    by_turn: dict[int, list[Turn]] = defaultdict(list)
    for mine in made.values():
        for request in mine:
            for number, turn in enumerate(request.turns):
                by_turn[number].append(turn)
    table = {row["turn"]: row for row in turn_table(read(made).digest).iter_rows(named=True)}
    assert table.keys() == by_turn.keys()
    for number, each in by_turn.items():
        row, engine = table[number], [float(turn.engine) for turn in each]
        assert (row["requests"], row["response_tokens"]) == (len(each), sum(turn.tokens for turn in each))
        assert (row["engine_sec"], row["tool_sec"]) == (
            sec(sum(engine)),
            sec_if_any(made, tool_ticks, sum(turn.tool for turn in each)),
        )
        assert row["engine_p50_sec"] == sec(quantile(engine, 0.5))
        assert row["engine_p99_sec"] == sec(quantile(engine, 0.99))


@settings(max_examples=15, deadline=None)
@given(made_runs)
def test_lengths_of_a_step_are_those_of_all_its_requests(made: Made) -> None:
    table = {row["step"]: row for row in length_table(read(made).digest).iter_rows(named=True)}
    for step in {step for (step, _), mine in made.items() if mine}:
        mine = [request for (of, _), each in made.items() if of == step for request in each]
        tokens = [float(request.tokens) for request in mine]
        row = table.pop(step)
        assert row["requests"] == len(mine)
        assert (row["min_tokens"], row["max_tokens"]) == (min(tokens), max(tokens))
        assert row["mean_tokens"] == pytest.approx(sum(tokens) / len(tokens))
        assert row["p95_tokens"] == pytest.approx(quantile(tokens, 0.95))
        assert row["capped_share"] == pytest.approx(sum(request.cut for request in mine) / len(mine))
        longest = max(length(each) for (of, _), each in made.items() if of == step) * TICK_US / 1e6
        assert row["tokens_per_sec"] == pytest.approx(sum(tokens) / longest, rel=1e-4)
    assert not table


rules = st.builds(
    Rules,
    max_tokens=st.none() | st.integers(1, 60),
    max_turn_tokens=st.none() | st.integers(1, 40),
    max_turns=st.none() | st.integers(1, 4),
    max_seconds=st.none() | st.sampled_from([0.5137, 1.0271, 2.5413]),
    oversample=st.none() | st.sampled_from([0.25, 1.0]),
    scale=st.dictionaries(st.sampled_from(["engine", "tool", "reward"]), st.sampled_from([0.0, 0.5, 2.0])),
)


def kept_of(request: Request, rules: Rules) -> list[float]:
    """Return the share of each turn's tokens that the caps leave."""
    shares: list[float] = []
    left = math.inf if rules.max_tokens is None else rules.max_tokens
    for number, turn in enumerate(request.turns):
        before = request.turns[number - 1].tokens if number else 0
        capped = before >= (rules.max_turn_tokens or math.inf)
        over = left <= 0 or capped or (shares and shares[-1] < 1)
        if over or number >= (rules.max_turns or math.inf):
            shares.append(0.0)
            continue
        allowed = min(turn.tokens, left, rules.max_turn_tokens or math.inf)
        left -= allowed
        shares.append(allowed / turn.tokens)
    return shares


def shortened(request: Request, rules: Rules) -> tuple[float, bool]:
    """Return the ticks that a request would take, and whether it is cut."""
    shares = kept_of(request, rules)
    factors = {kind: rules.scale.get(kind, 1.0) for kind in ("engine", "tool", "reward")}
    ticks = request.reward * factors["reward"]
    for number, (turn, share) in enumerate(zip(request.turns, shares, strict=True)):
        goes_on = share == 1 and (number + 1 == len(shares) or shares[number + 1] > 0)
        ticks += turn.engine * share * factors["engine"] + goes_on * turn.tool * factors["tool"]
    cut = any(share < 1 for share in shares)
    if rules.max_seconds is not None and ticks > rules.max_seconds * 1e6 / TICK_US + 1e-6:
        return rules.max_seconds * 1e6 / TICK_US, True
    return ticks, cut


@settings(max_examples=25, deadline=None)
@given(made_runs, rules)
def test_what_if_is_what_the_rules_make_of_each_request(made: Made, rules: Rules) -> None:
    model = Model(
        read(made).digest, EngineSpeed()
    )  # as fast with many calls as with one, and without prefill
    table = {row["step"]: row for row in model.predict(rules).iter_rows(named=True)}
    for step in {step for step, _ in made}:
        predicted, cuts = [], 0
        for (of, _), mine in made.items():
            if of != step:
                continue
            if not mine:
                predicted.append(length(mine))
                continue
            ends = []
            for request in mine:
                ticks, cut = shortened(request, rules)
                ends.append((MARGIN + request.begin + ticks, cut))
            ends.sort()
            needed = math.ceil(len(ends) / (1 + (rules.oversample or 0)))
            was = max(MARGIN + request.begin + request.ticks for request in mine)
            predicted.append(max(0.0, length(mine) - was + ends[needed - 1][0]))
            cuts += len(ends) - needed + sum(cut for _, cut in ends[:needed])
        assert table[step]["predicted_sec"] == sec(max(predicted))
        assert table[step]["requests"] == sum(len(mine) for (of, _), mine in made.items() if of == step)
        if rules.oversample is None:  # otherwise, of requests that end together, either may be cut
            assert table[step]["ended_early"] == cuts
