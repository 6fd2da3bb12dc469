"""Make an agenda from a run's log alone: what each request asked of the engine, and when."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from sglang_instrument.analysis.answers.engine.requests import cached_engine_requests
from sglang_instrument.analysis.answers.engine.round_trips import ahead_us, of_worker
from sglang_instrument.analysis.answers.routing.server_calls import server_calls
from sglang_instrument.errors import LogError
from sglang_instrument.twin.agendas.enough import enough_by_worker
from sglang_instrument.twin.agendas.limits import client_limits
from sglang_instrument.twin.agendas.planned import Agenda, AgendaRequest, AgendaStep, Sampling
from sglang_instrument.twin.agendas.sampling import sampling_by_call
from sglang_instrument.twin.agendas.sharing import Cache, group_names, planned_turns

if TYPE_CHECKING:
    from sglang_instrument.analysis.run.opening import Run

_REQUEST: Final = ("step", "worker", "request_id")
_EARLY_US: Final = 5_000  # a call begins by so much before its request, where clocks differ
_SOON_SEC: Final = 0.2  # a request ends after the abort of its call
_LONGER_SEC: Final = 3600.0  # an aborted wait would have been longer; the abort ends it in the twin, too
_NEEDED: Final = {
    "prompt_tokens": "the tokens of their prompts",
    "completion_tokens": "the tokens of their replies",
}


def agenda(run: Run, steps: Collection[int] | None = None) -> Agenda:
    """Return what the requests of a run asked of the engine, step by step.

    Args:
        run: The run.
        steps: Only these training steps; all by default.

    Raises:
        LogError: No call of the engine is known with its request and its lengths; the message names what
            would record that.
    """
    calls = server_calls(run).filter(~pl.col("validate"), pl.col("step").is_not_null())
    if steps is not None:
        calls = calls.filter(pl.col("step").is_in(list(steps)))
    known, missing = _complete(_with_path(calls, run), run.name)
    requests = _requests(run)
    cache = Cache.of(run)
    if not cache.nodes and not cache.prefixes:
        missing.append(
            "what prompts share follows from their lengths: no scheduler logged hashes of their beginnings "
            "(SGLANG_INSTRUMENT=1 in the servers records them)"
        )
    sampling = sampling_by_call(run)
    joined = _with_samples(_joined(known, requests), sampling)
    if several := int((joined["samples"] > 1).sum()):
        missing.append(f"{several:,} calls asked for several replies: they are replayed as equally long")
    left = len(known) - len(joined)
    if left:
        missing.append(f"{left:,} of {len(known):,} calls lie in no request of their step, and are left out")
    if joined.is_empty():
        raise LogError(f"{run.name}: no call of the engine lies in a request of a training step")
    begins, limits = _begins(run), _limits(joined)
    numbers = joined["step"].unique().sort().to_list()

    def planned() -> Iterator[AgendaStep]:
        before_us = 0
        for number in numbers:
            of_step = joined.filter(step=number)
            yield _step_of(number, of_step, before_us, begins, limits, cache, sampling)
            before_us = int(of_step["end_us"].max())  # type: ignore[arg-type]

    if aborted := int(joined["is_aborted"].sum()):
        missing += _aborts(planned(), aborted)
    return Agenda(planned, tuple(missing))


def _aborts(steps: Iterator[AgendaStep], of_all: int) -> Iterator[str]:
    """Yield what to know of aborted calls."""
    had_enough = sum(turn.is_aborted for step in steps for turn in step.turns)
    if had_enough:
        yield (
            f"{had_enough:,} calls were aborted when their worker had enough groups: the twin aborts what is "
            "left at as many groups; until then, their replies may be as long as the step's longest"
        )
    if of_all > had_enough:
        yield (
            f"{of_all - had_enough:,} calls were aborted before their worker had enough, or as they waited: "
            "their replies have the tokens that were generated until then"
        )


def _with_path(calls: pl.DataFrame, run: Run) -> pl.DataFrame:
    """Give each call what lay between its caller and its server: `sent_sec`, `returned_sec`; else 0."""
    served = cached_engine_requests(run).select("rid", served_us="start_us", served_sec="duration_sec")
    both = calls.join(served.unique("rid"), on="rid", how="left", maintain_order="left")
    sent = (pl.col("served_us") - pl.col("start_us")) / 1e6
    returned = (pl.col("end_us") - pl.col("served_us")) / 1e6 - pl.col("served_sec")
    path = {"sent_sec": sent, "returned_sec": returned}
    known = {name: sec.clip(0, pl.col("call_sec")).fill_null(0.0) for name, sec in path.items()}
    return both.with_columns(**known).drop("served_us", "served_sec")


def _with_samples(calls: pl.DataFrame, sampling: dict[str, Sampling]) -> pl.DataFrame:
    """Give each call how many replies it asked for, and the tokens of one of them."""
    samples = pl.Series("samples", [sampling.get(rid, Sampling()).samples for rid in calls["rid"]], pl.Int64)
    each = [
        pl.col(name) // pl.col("samples") for name in ("prompt_tokens", "cached_tokens", "completion_tokens")
    ]
    return calls.with_columns(samples).with_columns(each)


def _complete(calls: pl.DataFrame, name: str) -> tuple[pl.DataFrame, list[str]]:
    """Return the calls whose caller and lengths are known, and sentences about the others."""
    if calls.is_empty():
        raise LogError(
            f"{name}: no call of the engine is in the log of a training step: a `generate` of your own logs "
            "its `rid`, and servers log with SGLANG_INSTRUMENT=1 (docs/how-to/own-rollout.md)"
        )
    missing = []
    of_requests = calls.drop_nulls(["worker", "request_id"])
    if lost := len(calls) - len(of_requests):
        missing.append(
            f"{lost:,} of {len(calls):,} calls of the engine have no caller, and are left out: "
            "a `generate` that logs its `rid` joins them"
        )
    known = of_requests.drop_nulls([*_NEEDED, "start_us", "call_sec"])
    for column, words in _NEEDED.items():
        if lacking := of_requests[column].null_count():
            missing.append(
                f"{lacking:,} of {len(of_requests):,} calls lack {words}, and are left out: "
                f"SGLANG_INSTRUMENT=1 in the servers records them, or `{_field(column)}` in `generate`"
            )
    if known.is_empty():
        raise LogError(f"{name}: no call can be replayed: {'; '.join(missing)}")
    return known, missing


def _field(column: str) -> str:
    return "generated_tokens" if column == "completion_tokens" else column


def _requests(run: Run) -> pl.DataFrame:
    """Return the training requests, on the clock of the median worker."""
    ahead = of_worker(ahead_us(run))
    rows = run.everything.of_workers().requests.filter(~pl.col("validate"), pl.col("step").is_not_null())
    return rows.select(
        *_REQUEST,
        "attempt",
        group="group",
        request_start_us=pl.col("start_us") - ahead,
        request_end_us=pl.col("end_us") - ahead,
        reason=pl.col("finish_reason").cast(pl.String),
    )


def _joined(calls: pl.DataFrame, requests: pl.DataFrame) -> pl.DataFrame:
    """Give each call the request that it lies in; of retries under one id, the one that it began in."""
    rows = calls.with_row_index("call").join(requests, on=list(_REQUEST), how="inner")
    inside = pl.col("start_us").is_between(pl.col("request_start_us") - _EARLY_US, pl.col("request_end_us"))
    rows = rows.filter(inside).sort("request_start_us").unique("call", keep="last", maintain_order=True)
    is_last = pl.col("start_us") == pl.col("start_us").max().over(*_REQUEST, "attempt")
    is_aborted = is_last & (pl.col("reason") == "abort").fill_null(False)
    return rows.with_columns(is_aborted=is_aborted).sort("step", "request_start_us", "start_us")


def _begins(run: Run) -> dict[tuple[int, int], int]:
    """Return when the rollout of each step and worker began, in microseconds: with the worker's span."""
    steps = run.everything.of_workers().steps.filter(~pl.col("validate"), pl.col("step").is_not_null())
    rows = steps.select("step", "worker", start_us=pl.col("start_us") - of_worker(ahead_us(run)))
    return {(step, worker): start for step, worker, start in rows.iter_rows() if start is not None}


def _limits(calls: pl.DataFrame) -> dict[tuple[int, int], int | None]:
    """Return how many requests the client of each step and worker has open at most; None without a limit."""
    requests = calls.unique([*_REQUEST, "attempt"]).sort("request_start_us")
    times = requests.group_by("step", "worker").agg("request_start_us", "request_end_us")
    return client_limits(
        {
            (step, worker): list(zip(starts, ends, strict=True))
            for step, worker, starts, ends in times.iter_rows()
        }
    )


def _step_of(
    number: int,
    calls: pl.DataFrame,
    before_us: int,
    begins: dict[tuple[int, int], int],
    limits: dict[tuple[int, int], int | None],
    cache: Cache,
    sampling: dict[str, Sampling],
) -> AgendaStep:
    first_us = min(int(calls["request_start_us"].min()), int(calls["start_us"].min()))  # type: ignore[arg-type]
    last_us = int(calls["end_us"].max())  # type: ignore[arg-type]
    has_evictions = cache.was_full(first_us, last_us)
    chains = list(_chains(calls))
    names = group_names(chains, cache)
    enough = enough_by_worker(chains, names)
    stopped = {place for _, places in enough.values() for place in places}
    for place, chain in enumerate(chains):
        chain[-1]["is_aborted"] = place in stopped and _waited_sec(chain) < _SOON_SEC
    common, turns = planned_turns(chains, names, cache, has_evictions, sampling)
    # A flush before the first request may be a record before the span of the step.
    begin_of = {worker: begins.get((number, worker), first_us) for worker in calls["worker"].unique()}
    earliest = min(*begin_of.values(), first_us)
    requests = []
    for place, (chain, group, of_chain) in enumerate(zip(chains, names, turns, strict=True)):
        first = chain[0]
        after_sec = _waited_sec(chain) if first["is_main"] else 0.0
        if place in stopped and not chain[-1]["is_aborted"]:
            after_sec = _LONGER_SEC
        requests.append(
            AgendaRequest(
                request_id=first["name"],
                worker=first["worker"],
                group=group,
                start_sec=max(0, first["request_start_us"] - begin_of[first["worker"]]) / 1e6,
                turns=tuple(of_chain),
                after_sec=after_sec,
            )
        )
    of_workers = {worker: limits[number, worker] for worker in sorted(begin_of)}
    # Trainers empty the cache after training, between the last call of the step before and this one's first.
    is_flushed = cache.was_flushed(number, min(earliest, before_us), first_us)
    needed = {worker: groups for worker, (groups, _) in enough.items()}
    return AgendaStep(number, tuple(requests), of_workers, is_flushed, common, has_evictions, needed)


def _waited_sec(chain: Sequence[dict[str, Any]]) -> float:
    """Return the seconds from the last reply of a request to its end."""
    return max(0, int(chain[0]["request_end_us"]) - int(chain[-1]["end_us"])) / 1e6


def _chains(calls: pl.DataFrame) -> Iterator[list[dict[str, Any]]]:
    """Yield the calls of each request, one after the other; those that overlap these are a second chain."""
    for _, of_request in calls.group_by([*_REQUEST, "attempt"], maintain_order=True):
        chains: list[list[dict[str, Any]]] = []
        for call in of_request.iter_rows(named=True):
            chain = next(
                (chain for chain in chains if chain[-1]["end_us"] <= call["start_us"] + _EARLY_US), None
            )
            if chain is None:
                chains.append(chain := [])
            chain.append(call)
        for place, chain in enumerate(chains):
            first = chain[0]
            suffix = f"~{first['attempt']}" if first["attempt"] else ""
            suffix += f"+{place}" if place else ""
            first["name"], first["is_main"] = f"{first['request_id']}{suffix}", place == 0
            if place:  # it begins with its own first call
                first["request_start_us"] = first["start_us"]
            yield chain
