"""Split calls by what their server did: its way, its tokenizer, its queue, its prefill, its decode.

A server is compared with the other servers in the same step, so that what all of them share is no fault of
one, and with its own other steps, so that what it always does tells how far chance goes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from sglang_instrument.analysis.answers.gaps import loop_blocks
from sglang_instrument.analysis.ledger.ledger import STEP
from sglang_instrument.analysis.run.cached_tables import made_once
from sglang_instrument.analysis.timing.open_spans import integral
from sglang_instrument.analysis.verdict.evidence.effects import FEWEST_STEPS, SPREADS, robust_spread
from sglang_instrument.analysis.verdict.evidence.servers.held_calls import held_by_updates
from sglang_instrument.analysis.verdict.evidence.servers.prefills import timed_calls, with_usual_prefill
from sglang_instrument.analysis.verdict.evidence.servers.rates import fit_rate
from sglang_instrument.analysis.verdict.evidence.servers.silences import silences_of

if TYPE_CHECKING:
    from sglang_instrument.analysis.verdict.evidence.run_evidence import Evidence

#: The parts of a call that its server decides, causes before consequences: a slow decode makes a queue.
PARTS: Final = ("decode", "prefill", "reading", "network", "tokenizer", "queue")
#: From how many times as long as at the other servers on a part is out of the ordinary.
TIMES: Final = {
    "decode": 1.25,
    "prefill": 2.0,
    "reading": 2.0,
    "network": 2.0,
    "tokenizer": 2.0,
    "queue": 2.0,
}
#: Seconds a call below which differences are nothing: added to both sides of a ratio.
FLOOR_SEC: Final = {
    "decode": 0.0,
    "prefill": 0.02,
    "reading": 0.02,
    "network": 0.05,
    "tokenizer": 0.05,
    "queue": 0.1,
}
#: Of the calls' time: a shorter queue comes and goes.
LEAST_QUEUE: Final = 0.1
_SPREADS: Final = {
    "decode": 4.0
}  # of the load that was fitted, so the ratio varies little; 6 for other parts
_LEAST_SPREAD: Final = 0.03
_STEADY: Final = frozenset({"decode", "prefill", "network", "tokenizer"})
_LOADED: Final = 1.3  # times the mean calls of the servers of a step
_FEWEST: Final = 5  # calls of a server in a step
_FEWEST_TOKENS: Final = 8  # of a reply, for its decode to be timed


def server_parts(evidence: Evidence) -> pl.DataFrame:
    """Return the calls of a run with what each part took, and what it usually takes in it; computed once.

    Returns:
        The columns of `timed_calls`; for each part of `PARTS` `PART_sec`; of two what is usual in this
        run, by fits to all calls: `decode_usual_sec`, what so many tokens take with so many calls at once,
        without the prefills of other calls meanwhile, and `prefill_usual_sec`, what as many tokens take to
        read. Empty where the servers did not log.
    """
    calls = timed_calls(evidence)
    if evidence.run is None or calls.is_empty() or calls["server"].n_unique() < 2:
        return pl.DataFrame()
    return made_once(evidence.run, "server_parts", lambda: _parts_of(evidence, calls))


def _parts_of(evidence: Evidence, calls: pl.DataFrame) -> pl.DataFrame:
    network = (pl.col("call_sec") - pl.col("duration_sec")).clip(lower_bound=0.0)
    held = held_by_updates(evidence).select("rid", "held_sec")
    calls = calls.with_columns(network_sec=network)
    calls = _but_blocked_loops(calls, loop_blocks(evidence.files))
    calls = calls.join(held, on="rid", how="left", maintain_order="left")
    waited = (pl.col("tokenizer_sec") - pl.col("held_sec").fill_null(0.0)).clip(lower_bound=0.0)
    calls = _with_usual_decode(calls.with_columns(tokenizer_sec=waited).drop("held_sec"))
    calls = with_usual_prefill(calls).with_columns(reading_sec="prefill_sec")
    return _served_throughout(calls, silences_of(evidence))


def _but_blocked_loops(calls: pl.DataFrame, blocks: pl.DataFrame) -> pl.DataFrame:
    """Return the calls with `network_sec` less the time in which their caller's event loop was blocked."""
    blocks = blocks.filter(role="worker")
    if blocks.is_empty():
        return calls
    parts = []
    for (worker,), part in calls.group_by("worker", maintain_order=True):
        to_us = blocks.filter(worker=worker)["at_us"].to_numpy().astype(float)
        from_us = to_us - blocks.filter(worker=worker)["blocked_sec"].to_numpy() * 1e6
        blocked = integral(from_us, to_us, union=True) if len(to_us) else None
        sec = 0.0 if blocked is None else (blocked(part["end_us"]) - blocked(part["start_us"])) / 1e6
        parts.append(part.with_columns(network_sec=(pl.col("network_sec") - sec).clip(lower_bound=0.0)))
    return pl.concat(parts)


def _served_throughout(calls: pl.DataFrame, silences: pl.DataFrame) -> pl.DataFrame:
    """Return the calls that met no silence of their server."""
    met = calls.select("rid", "server", "start_us", "end_us").join(
        silences.select("server", "from_us", "to_us"), on="server"
    )
    met = met.filter((pl.col("start_us") < pl.col("to_us")) & (pl.col("end_us") > pl.col("from_us")))
    return calls.join(met, on="rid", how="anti", maintain_order="left")


def _with_usual_decode(calls: pl.DataFrame) -> pl.DataFrame:
    parts = [_with_load(part) for part in calls.partition_by("server", maintain_order=True)]
    calls = pl.concat(parts)
    tokens = (pl.col("completion_tokens") - 1).clip(lower_bound=0)
    calls = calls.with_columns(decode_sec=pl.col("decode_sec") - pl.col("held_sec"), tokens=tokens)
    timed = calls.filter((pl.col("tokens") >= _FEWEST_TOKENS) & (pl.col("decode_sec") > 0))
    constant, slope = fit_rate(
        timed["tokens"].to_numpy(), timed["at_once"].to_numpy(), timed["decode_sec"].to_numpy()
    )
    usual = pl.col("tokens") * (constant + slope * pl.col("at_once"))
    return calls.with_columns(decode_usual_sec=usual)


def _with_load(calls: pl.DataFrame) -> pl.DataFrame:
    """Add to the calls of a server how many decoded beside each, and how long other prefills held it up."""
    admitted, first, end = (calls[name].to_numpy() for name in ("admitted", "first", "end"))
    sec = np.maximum(end - first, 1e-9)
    running = integral(first, end)
    prefilling = integral(admitted, first, union=True)
    at_once = (running(end) - running(first)) / sec
    held = np.minimum(prefilling(end) - prefilling(first), 0.9 * sec)
    return calls.with_columns(at_once=pl.Series(at_once), held_sec=pl.Series(np.maximum(held, 0.0)))


def server_cells(calls: pl.DataFrame, part: str) -> pl.DataFrame:
    """Return how each server was in each step, for one part, beside the others.

    Args:
        calls: As `server_parts` returns them; or with workers in the place of servers.
        part: One of `PARTS`.

    Returns:
        step, validate, server; mean_sec: of a call; share: of its time; off: the logarithm of how many times
        as long as at the other servers of the step (their median) the part took: a decode and a prefill for
        their tokens,
        reading for the tokens of the prompts; spread: of `off`, or of a server's own times where these are
        steady, about its server's middle, or from step to step, whichever is smallest; peers: how many other
        servers; is_alone: whether one worker alone calls it, and calls no other.
    """
    is_alone = (pl.col("worker").n_unique().over("server") == 1) & (
        pl.col("server").n_unique().over("worker") == 1
    )
    if part == "decode":
        calls = calls.filter((pl.col("tokens") >= _FEWEST_TOKENS) & (pl.col("decode_usual_sec") > 0))
    cells = (
        calls.with_columns(is_alone=is_alone)
        .group_by(*STEP, "server")
        .agg(
            value=_value(part),
            mean_sec=pl.col(f"{part}_sec").mean(),
            share=pl.col(f"{part}_sec").sum() / pl.col("call_sec").sum(),
            calls=pl.len(),
            is_alone=pl.col("is_alone").all(),
        )
        .filter((pl.col("calls") >= _FEWEST) & pl.col("value").is_finite())
        .sort(*STEP, "server")
    )
    rows: list[dict[str, Any]] = []
    for _, of_step in cells.group_by(STEP, maintain_order=True):
        values = of_step["value"].to_list()
        for place, row in enumerate(of_step.iter_rows(named=True)):
            others = values[:place] + values[place + 1 :]
            if others:
                rows.append({**row, "off": row["value"] - float(np.median(others)), "peers": len(others)})
    if not rows:
        return pl.DataFrame()
    table = pl.DataFrame(rows)
    changes = table.select(pl.col("off").diff().over("validate", "server")).to_series().drop_nulls()
    # A server that is slow in one step changes twice; one that is slow from a step on is far from its middle.
    # Of two servers, one of which is slow, both are far from each other: their own times tell how they vary,
    # where these do not follow from what others do.
    around = [_around(table, name) for name in ("off", *(("value",) if part in _STEADY else ()))]
    spreads = [robust_spread(series, _LEAST_SPREAD) for series in (changes / math.sqrt(2), *around)]
    return table.with_columns(spread=pl.lit(min(spreads)))


def _value(part: str) -> pl.Expr:
    """Return the logarithm of what a part took at a server in a step: for its work, where that is known."""
    floor = FLOOR_SEC[part]
    if part == "decode":
        return (pl.col("decode_sec").sum() / pl.col("decode_usual_sec").sum()).log()
    if part == "prefill":
        return ((pl.col("prefill_sec").mean() + floor) / (pl.col("prefill_usual_sec").mean() + floor)).log()
    if part == "reading":
        return ((pl.col("prefill_usual_sec").mean() + floor) / pl.col("prompt_tokens").mean()).log()
    return (pl.col(f"{part}_sec").mean() + floor).log()


def _around(table: pl.DataFrame, name: str) -> pl.Series:
    """Return how far each value of a server is from the middle of its steps."""
    return table.select(pl.col(name) - pl.col(name).median().over("validate", "server")).to_series()


def slow_cells(cells: pl.DataFrame, part: str) -> pl.DataFrame:
    """Return the servers and steps in which a part took far longer than at the other servers.

    A server that got more calls than the others has its queue from the router.
    """
    if cells.is_empty():
        return cells
    if part == "queue":
        cells = cells.filter(pl.col("share") >= LEAST_QUEUE)
        cells = cells.filter(pl.col("calls") <= _LOADED * pl.col("calls").mean().over(STEP))
    least = pl.max_horizontal(
        _SPREADS.get(part, SPREADS) * pl.col("spread"), pl.lit(float(np.log(TIMES[part])))
    )
    if part == "queue":
        return cells.filter((pl.col("off") > least) | _queued_in_all(cells))
    return cells.filter(pl.col("off") > least)


def _queued_in_all(cells: pl.DataFrame) -> pl.Series:
    """Return which rows are of a server with a queue in each step, though by another factor each time.

    The mean over n steps varies less than that of a step, by the square root of n. Only the server of a
    worker of its own is judged so: what a router sends to others may differ in each step.
    """
    off, of_server = pl.col("off"), ["validate", "server"]
    apart = float(np.log(TIMES["queue"]))
    least = pl.max_horizontal(SPREADS * pl.col("spread") / pl.len().cast(pl.Float64).sqrt(), pl.lit(apart))
    always = (pl.len() >= FEWEST_STEPS) & (off.min() > apart) & (off.median() > least.first())
    return cells.select((always & pl.col("is_alone").all()).over(of_server)).to_series()
