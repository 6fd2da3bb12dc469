"""Estimate what more or fewer servers of the rollout would save: of the rollout, and of the loop. A model.

Requests are replayed at that number of equal servers, behind a router that keeps them evenly busy. A rollout
that ends sooner saves only the time for which the trainer waits for it.
"""

import math
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.changes.replaying.queueing import fit_at_limits, fit_with_limit
from sglang_instrument.analysis.changes.replaying.recorded import recorded_requests, request_rows
from sglang_instrument.analysis.changes.replaying.replay import replay
from sglang_instrument.analysis.changes.replaying.rules import Factors, Rules, under
from sglang_instrument.analysis.changes.replaying.serving import Serving
from sglang_instrument.analysis.digests.digest import Digest
from sglang_instrument.analysis.ledger.deciding_paths import STEP
from sglang_instrument.analysis.ledger.engine_speed import EngineSpeed, Fit, engine_calls
from sglang_instrument.analysis.ledger.loop import Loop, steady
from sglang_instrument.errors import InstrumentError

ASSUMED: Final = (
    "The router keeps all servers evenly busy, and a new one is as fast as those that are there.",
    "Requests begin when they began; log-probs, updates and weight sync take as long as they took.",
)
_UNKNOWN: Final = Serving()


@dataclass(frozen=True)
class Replicas:
    """What another number of servers would change.

    Attributes:
        recorded: How many servers served the run.
        source: How that is known: "log", "workers" (each has its engine), "told", or "assumed".
        servers: How many of them the prediction is for.
        limit: How many calls a server runs at once, as fitted; None for any number.
        error: Half of the calls are farther from the fitted speed; None without a fit.
        steps: step, validate, to_next_step_sec, rollout_sec; rollout_saved_sec: by how much sooner the
            rollout would end, saved_sec: the step of the loop. A loss is negative. Null: it is not known.
        mean: The mean of these columns, of the steps in which both sides are at work.
    """

    recorded: int
    source: str
    servers: int
    limit: int | None
    error: float | None
    steps: pl.DataFrame
    mean: dict[str, float | None]


def with_replicas(
    loop: Loop,
    more: int,
    serving: Serving = _UNKNOWN,
    *,
    recorded: int | None = None,
    running: int | None = None,
) -> Replicas:
    """Return what `more` servers would save.

    Args:
        loop: The loop of the run.
        more: How many servers more; negative for fewer.
        serving: What the log tells of the servers: `serving_of`.
        recorded: How many servers served the run; None where `serving` tells, or the calls.
        running: How many requests a server runs at most at once; None where `serving` tells, or to fit it.

    Raises:
        InstrumentError: No server would be left, or nothing tells how fast the servers are.
    """
    served = served_run(loop.lanes.paths.of_workers, serving, recorded=recorded, running=running)
    fit, number, source = served.fit, served.servers, served.source
    servers = number + more
    if servers < 1 or number < 1:
        raise InstrumentError(f"--replicas {more:+d}: the run has {number} server{'s' * (number != 1)}")
    ends = _ends(served, servers)
    steps = saved_of_loop(loop, ends)
    names = [name for name in steps.columns if name.endswith("_sec")]
    chosen = steady(steps, loop.shape())
    mean: dict[str, Any] = {
        name: None if chosen[name].null_count() else chosen[name].mean() for name in names
    }
    error = None if fit.error is None else math.expm1(fit.error)
    shown = steps.select(*STEP, *names)
    return Replicas(number, source, servers, served.limit, error, shown, mean)


@dataclass(frozen=True)
class ServedRun:
    """The training steps of a run, with the speed of the servers that served them.

    Attributes:
        digest: Of the workers' training steps; where they share servers, as if one worker had sent all
            requests.
        fit: The speed, of the servers that the fit saw as one engine.
        together: How many servers the fit saw as one engine.
        servers: How many there were.
        source: How that is known: "log", "workers" (each has its engine), "told", or "assumed".
        all_running: How many calls the engine of the fit runs at once; None for any number.
    """

    digest: Digest
    fit: Fit
    together: int
    servers: int
    source: str
    all_running: int | None

    @property
    def limit(self) -> int | None:
        """How many calls one server runs at once; None for any number."""
        return None if self.all_running is None else max(1, round(self.all_running / self.together))

    @property
    def speed(self) -> EngineSpeed:
        """The speed of one server."""
        speed = self.fit.speed
        return speed._replace(crowd_sec=speed.crowd_sec * self.together)


def served_run(
    of_workers: Digest,
    serving: Serving = _UNKNOWN,
    *,
    recorded: int | None = None,
    running: int | None = None,
) -> ServedRun:
    """Fit the speed of the servers to the calls of a run's training steps.

    Args:
        of_workers: The digest of its workers.
        serving: As for `with_replicas`.
        recorded: As for `with_replicas`.
        running: As for `with_replicas`.

    Raises:
        InstrumentError: No call of the engine has its tokens in the log.
    """
    digest = of_workers.filter(~pl.col("validate"))
    calls = engine_calls(digest)
    if calls.is_empty():
        raise InstrumentError(
            "no call of the engine has its tokens in the log: record at detail=turn or all, and let the call "
            "log generated_tokens"
        )
    known, running = recorded or serving.servers, running or serving.running
    if known not in (None, digest.steps["worker"].n_unique()):
        digest = _as_one(digest)
        calls = engine_calls(digest)
    workers = digest.steps["worker"].n_unique()
    if running is None:
        fit, limit = fit_with_limit(calls)
    else:
        together = known or 1
        fit, limit = fit_at_limits(calls, running * (together if workers == 1 else 1), running * together)
    apart = not fit.speed.shared and workers > 1
    number = known or (workers if apart else 1)
    source = "told" if recorded else "log" if known else "workers" if apart else "assumed"
    return ServedRun(digest, fit, 1 if apart else number, number, source, limit)


def _as_one(digest: Digest) -> Digest:
    """Return a digest as if one worker had sent all requests: all of them share the servers."""
    alike = pl.lit(0, pl.Int64).alias("worker")
    tables = {name: table.with_columns(alike) for name, table in digest.tables().items()}
    return Digest(**tables)


def _ends(served: ServedRun, servers: int) -> pl.DataFrame:
    """Return when the rollout of each step ends, and the mean time of its requests: as it was, and will be.

    Args:
        served: The run.
        servers: How many servers there will be.
    """
    rows = request_rows(served.digest)
    recorded = [
        under(request, Rules(), Factors())[0]
        for request in recorded_requests(rows, served.digest, served.fit, served.all_running)
    ]
    rows_of_steps = []
    numbered = rows.with_row_index("number")
    for place, members in numbered.group_by(STEP, maintain_order=True):
        requests = [recorded[number_in_run] for number_in_run in members["number"]]
        was, will = (
            replay(requests, served.speed, served.limit, engines) for engines in (served.servers, servers)
        )
        begins = [request.begin for request in requests]
        took = [sum(ends) - sum(begins) for ends in (was, will)]
        rows_of_steps.append((*place, max(was), max(will), took[1] / took[0] if took[0] > 0 else 1.0))
    schema = {**dict(zip(STEP, (pl.Int64, pl.Boolean), strict=True)), "was": pl.Float64, "will": pl.Float64}
    return pl.DataFrame(rows_of_steps, schema={**schema, "ratio": pl.Float64}, orient="row")


def saved_of_loop(loop: Loop, ends: pl.DataFrame) -> pl.DataFrame:
    """Return what the steps of the loop save where their rollouts end sooner.

    Where they take turns, all that the rollout saves; else at most what the trainer waits. What a rollout
    loses, it first takes from its own waiting. An asynchronous rollout has a new request for each that ends,
    so that its throughput counts.
    """
    steps = loop.steps().join(ends, on=STEP, how="left", maintain_order="left")
    shape = loop.shape()
    by_end, by_rate = pl.col("was") - pl.col("will"), pl.col("rollout_sec") * (1 - pl.col("ratio"))
    sooner = by_rate if shape == "asynchronous" else by_end
    if shape is None:
        saved = pl.lit(None, pl.Float64)
    elif shape == "synchronous":
        saved = sooner
    else:
        gained = pl.min_horizontal(sooner, "trainer_waits_sec")
        lost = pl.min_horizontal(sooner + pl.col("rollout_waits_sec"), pl.lit(0.0))
        saved = pl.when(sooner > 0).then(gained).otherwise(lost)
    names = ("step", "validate", "to_next_step_sec", "rollout_sec")
    waits = ("validation_sec", "trainer_waits_sec", "rollout_waits_sec")
    return steps.select(*names, *waits, rollout_saved_sec=sooner, saved_sec=saved)
