"""Collect the data of each section of the report, as plain lists that become JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from sglang_instrument.analysis.answers.gaps import concurrency, loop_blocks, plateaus, standstill
from sglang_instrument.analysis.answers.lengths import reward_by_length
from sglang_instrument.analysis.answers.requests import cdf_table, request_table
from sglang_instrument.analysis.answers.steps import step_table, worker_table
from sglang_instrument.analysis.answers.turns import turn_counts, turn_table
from sglang_instrument.analysis.answers.workers import barrier_table, blame_table
from sglang_instrument.analysis.changes.metrics import counted_by
from sglang_instrument.analysis.run.clocks import clock_table
from sglang_instrument.report.html.chosen import Chosen
from sglang_instrument.schema import PHASES

if TYPE_CHECKING:
    from sglang_instrument.analysis.changes.compare import Comparison
    from sglang_instrument.analysis.digests.digest import Digest
    from sglang_instrument.analysis.run.opening import Run
    from sglang_instrument.analysis.verdict.evidence.finding import Finding

_POINTS: Final = 320  # points of a curve; a screen cannot show more
_MOST_CURVES: Final = 64  # workers with a curve of their own
_MOST_HEAT_STEPS: Final = 400
_MOST_ROWS: Final = 40
_TRAINING: Final = ~pl.col("validate")


def step_rows(steps: pl.DataFrame, findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """Return the steps with the phases' shares, and whether a finding names them."""
    named = {(finding.step, finding.validate) for finding in findings}
    rows = []
    for row in steps.iter_rows(named=True):
        shares = [round(row.pop(f"share_{phase}"), 6) for phase in PHASES]
        where = (row["step"], row["validate"])
        rows.append(
            {**row, "key": Chosen(where[1], where[0]).key, "shares": shares, "accused": where in named}
        )
    return rows


def curves(digest: Digest, chosen: Sequence[Chosen]) -> dict[str, list[dict[str, Any]]]:
    """Return by step and worker the requests in flight, when 80 % and all were done, and the stragglers."""
    shares = {
        row[:3]: row[3]
        for row in worker_table(digest).select("step", "validate", "worker", "straggler_share").iter_rows()
    }
    table = concurrency(digest)
    requests = digest.of_workers().requests
    curves_by_step: dict[str, list[dict[str, Any]]] = {}
    for step in chosen:
        here = (pl.col("step") == step.step) & (pl.col("validate") == step.validate)
        curves_by_step[step.key] = [
            {
                "worker": worker,
                **_curve(part),
                **_done(requests.filter(here & (pl.col("worker") == worker))),
                "straggler_share": shares.get((step.step, step.validate, worker)),
            }
            for (worker,), part in table.filter(here)
            .sort("worker", "at_sec")
            .group_by("worker", maintain_order=True)
        ][:_MOST_CURVES]
    return curves_by_step


def _curve(part: pl.DataFrame) -> dict[str, list[Any]]:
    every = max(1, len(part) // _POINTS)
    thin = part.filter((pl.int_range(pl.len()) % every == 0) | (pl.int_range(pl.len()) == pl.len() - 1))
    return {"at_sec": _rounded(thin["at_sec"]), "in_flight": thin["in_flight"].to_list()}


def _done(requests: pl.DataFrame) -> dict[str, float | None]:
    """Return when 80 % and all of the requests were done, since the first of them began."""
    done = (requests["end_us"] - requests["start_us"].min()).sort() / 1e6
    if done.is_empty():
        return {"t80_sec": None, "t100_sec": None}
    return {"t80_sec": float(done[math.ceil(len(done) * 4 / 5) - 1]), "t100_sec": float(done[-1])}


def heat(digest: Digest) -> dict[str, Any]:
    """Return when each worker arrived at the barriers of each step, its blame, and doubts about it."""
    table = barrier_table(digest.filter(_TRAINING))
    sums = table.group_by("step", "worker").agg(
        pl.col("arrival_sec", "caused_wait_sec", "wait_sec").sum(), doubt=pl.col("doubt").drop_nulls().first()
    )
    steps = sums["step"].unique().sort().tail(_MOST_HEAT_STEPS).to_list()
    of_steps = sums["step"].n_unique()
    workers = sums["worker"].unique().sort().to_list()
    by_place = {(row["step"], row["worker"]): row for row in sums.iter_rows(named=True)}
    grids = {
        name: [
            [_rounded_or_none(by_place.get((step, worker), {}).get(name)) for step in steps]
            for worker in workers
        ]
        for name in ("arrival_sec", "caused_wait_sec", "wait_sec")
    }
    doubts = {
        str(row["step"]): row["doubt"] for row in sums.iter_rows(named=True) if row["doubt"] is not None
    }
    return {
        "steps": steps,
        "of_steps": of_steps,
        "workers": workers,
        "doubts": doubts,
        "blame": blame_table(digest).to_dicts(),
        **grids,
    }


def cdfs(digest: Digest, chosen: Sequence[Chosen]) -> dict[str, Any]:
    """Return the distribution of durations: over all requests, by worker and by step."""
    requests = request_table(digest).filter(_TRAINING)
    workers = requests["worker"].unique().sort().head(_MOST_CURVES).to_list()
    return {
        "all": _cdf(requests),
        "workers": {str(worker): _cdf(requests.filter(worker=worker)) for worker in workers},
        "steps": {
            step.key: _cdf(request_table(digest).filter(step=step.step, validate=step.validate))
            for step in chosen
        },
        "table": cdf_table(requests, ["worker"]).head(_MOST_CURVES).to_dicts(),
        "whole": _of_all(requests),
    }


def _of_all(requests: pl.DataFrame) -> list[dict[str, Any]]:
    """Return the percentiles of all requests together; no row without a request."""
    return cdf_table(requests.with_columns(all=pl.lit("all")), ["all"]).to_dicts()


def _cdf(requests: pl.DataFrame) -> dict[str, Any]:
    """Return some of the sorted durations, with the share of requests that took no longer."""
    durations = requests["duration_sec"].sort()
    count = len(durations)
    places = sorted({round(number * (count - 1) / _POINTS) for number in range(_POINTS + 1)}) if count else []
    return {
        "sec": _rounded(durations[places]),
        "share": [(place + 1) / count for place in places],
        "requests": count,
    }


def turns(digest: Digest) -> dict[str, Any]:
    """Return how many turns requests take, and how long each turn takes."""
    training = digest.filter(_TRAINING)
    return {
        "turns": turn_table(training).head(_MOST_ROWS).to_dicts(),
        "counts": turn_counts(training).head(_MOST_ROWS).to_dicts(),
    }


def lengths(digest: Digest, by_step: pl.DataFrame) -> dict[str, Any]:
    """Return response lengths by step, from `length_table`, and rewards by length."""
    training = digest.filter(_TRAINING)
    return {"steps": by_step.filter(_TRAINING).to_dicts(), "deciles": reward_by_length(training).to_dicts()}


def gaps(run: Run) -> dict[str, Any]:
    """Return plateaus with what the requests did in them, and blocks of event loops."""
    still = plateaus(run.digest)
    blocks = loop_blocks(run.files)
    return {
        "plateaus": [{**row, **standstill(run.digest, row)} for row in still.head(_MOST_ROWS).to_dicts()],
        "blocks": blocks.head(_MOST_ROWS).to_dicts(),
        "of_plateaus": len(still),
        "of_blocks": len(blocks),
    }


def comparison(compared: Comparison, other: Run) -> dict[str, Any]:
    """Return how another run differs: metric by metric, its steps and its durations."""
    steps = step_table(other.digest.filter(_TRAINING)).select("step", "duration_sec")
    requests = request_table(other.digest).filter(_TRAINING)
    return {
        "metrics": [{**row, "of": counted_by(row["metric"])} for row in compared.table.to_dicts()],
        "steps": steps.to_dicts(),
        "cdf": _cdf(requests),
        "whole": _of_all(requests),
    }


def clocks(digest: Digest) -> list[dict[str, Any]]:
    """Return how far the clocks of the workers differ."""
    return clock_table(digest).to_dicts()


def _rounded(values: pl.Series) -> list[float]:
    return values.round(6).to_list()


def _rounded_or_none(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
