"""Measure how long the replies of requests are, and how likely chance draws those of a step or a worker."""

from collections.abc import Sequence
from typing import Final

import polars as pl

from sglang_instrument.analysis.ledger.ledger import STEP, STEP_OF_WORKER
from sglang_instrument.analysis.verdict.evidence.chance import (
    chances_of_higher_logs,
    chances_of_higher_ranks,
    drawn_together,
)
from sglang_instrument.analysis.verdict.evidence.run_evidence import Evidence

#: Of a request: all its tokens, those of a turn on average, those of its longest turn.
LENGTHS: Final = ("tokens", "of_turn", "in_turn")
_REQUEST: Final = [*STEP_OF_WORKER, "request_id"]


def replies_of(evidence: Evidence) -> pl.DataFrame:
    """Return the requests that have a reply, with the lengths of `LENGTHS` in tokens.

    Returns:
        step, validate, worker, request_id, group, tokens, of_turn, in_turn, and `sec`: what their engine
        calls usually take.
    """
    engine = evidence.calls.filter(pl.col("kind") == "engine").group_by(_REQUEST)
    tokens = pl.col("response_tokens").cast(pl.Float64)
    turns = pl.col("turns").fill_null(1).clip(lower_bound=1)
    replied = evidence.digest.requests.filter(pl.col("response_tokens") > 0)
    several = replied.filter(pl.col("turns") > 1).select(_REQUEST)
    longest = evidence.digest.turns.select(*_REQUEST, "response_tokens").join(
        several, on=_REQUEST, how="semi"
    )
    longest = longest.group_by(_REQUEST).agg(in_turn=pl.col("response_tokens").max())
    requests = replied.select(*_REQUEST, "group", tokens=tokens, of_turn=tokens / turns)
    for more in (longest, engine.agg(sec=pl.col("usual_sec").sum())):
        requests = requests.join(more, on=_REQUEST, how="left", maintain_order="left")
    in_turn = pl.col("in_turn").cast(pl.Float64).clip(pl.col("of_turn"), pl.col("tokens"))
    return requests.with_columns(in_turn=in_turn.fill_null(pl.col("of_turn")))


def compared_lengths(requests: pl.DataFrame, cell: Sequence[str]) -> pl.DataFrame:
    """Return for each step, or worker in it, how its replies compare with all others of their kind.

    Replies count by their turns: `more-turns` tells of requests that have more of these.

    Args:
        requests: As `replies_of` returns them.
        cell: The columns of a step, or of a worker in it.

    Returns:
        The columns of `chances_of_higher_ranks`; `chance` is by two tests, of ranks and of logarithms.
    """
    together = alike_replies(requests, [name for name in cell if name not in STEP])
    by_ranks = chances_of_higher_ranks(requests, "of_turn", cell, "validate", together)
    by_logs = chances_of_higher_logs(requests, "of_turn", cell, "validate", together)
    both = by_ranks.join(by_logs, on=cell, how="left", maintain_order="left", suffix="_of_logs")
    chance = 2 * pl.min_horizontal("chance", "chance_of_logs")
    return both.with_columns(chance=chance.clip(upper_bound=1.0)).drop("chance_of_logs")


def alike_replies(requests: pl.DataFrame, part: Sequence[str] = ()) -> float:
    """Return how many replies count as one draw: those to one prompt are alike; of `part`, those it has."""
    logs = requests.with_columns(log=pl.col("of_turn").log())
    return drawn_together(logs, "log", [*STEP, "group"], STEP, part)
