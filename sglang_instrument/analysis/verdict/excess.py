"""Share out how much longer a step took than usual over the parts of its ledger."""

import polars as pl

from sglang_instrument.analysis.ledger.ledger import STEP, STEP_OF_WORKER, step_ledger, step_windows
from sglang_instrument.analysis.run.digest import Digest

#: Parts whose calls have a usual time: what more or longer calls took, and what slower calls took.
_SPLIT = {"engine": ("longer replies", "slower engine"), "tool": ("more tool calls", "slower tools")}


def excess_table(digest: Digest, calls: pl.DataFrame) -> pl.DataFrame:
    """Return how much longer than usual each part of each step was. After the last step, no next one begins.

    Args:
        digest: Of all processes of the run.
        calls: As `calls_of` returns them.

    Returns:
        step, validate, part, sec, usual_sec (the median of the other steps), excess_sec; the longest excess
        of a step first. The engine's time is shared out over longer replies (what the written tokens usually
        take) and a slower engine, that of tools over more calls and slower ones.
    """
    parts = _split(digest, calls)
    steps = parts.select(STEP).unique()
    parts = steps.join(parts.select("part").unique(), how="cross").join(parts, on=[*STEP, "part"], how="left")
    parts = parts.with_columns(pl.col("sec").fill_null(0.0))
    others = parts.join(parts, on=["validate", "part"], suffix="_other").filter(
        pl.col("step") != pl.col("step_other")
    )
    usual = others.group_by(*STEP, "part").agg(usual_sec=pl.col("sec_other").median())
    table = parts.join(usual, on=[*STEP, "part"])
    last = step_windows(digest).select(STEP).tail(1).with_columns(part=pl.lit("between steps"))
    table = table.join(last, on=[*STEP, "part"], how="anti")
    table = table.with_columns(excess_sec=pl.col("sec") - pl.col("usual_sec"))
    return table.sort("validate", "step", "excess_sec", descending=[False, False, True])


def _split(digest: Digest, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the seconds of each part of each step."""
    ledger = step_ledger(digest)
    whole = (
        ledger.filter(~pl.col("part").is_in(list(_SPLIT))).group_by(*STEP, "part").agg(pl.col("sec").sum())
    )
    tables = [whole]
    for kind, (more, slower) in _SPLIT.items():
        spent = ledger.filter(pl.col("part") == kind)
        total = spent.group_by(*STEP).agg(pl.col("sec").sum())
        on_path = digest.path.join(spent, on=STEP_OF_WORKER, how="semi").drop_nulls(["request_id", "turn"])
        mine = calls.filter(pl.col("kind") == kind)
        mine = mine.join(on_path, on=[*STEP_OF_WORKER, "request_id", "turn"], how="semi")
        usual = mine.group_by(STEP).agg(usual=pl.col("usual_sec").sum())
        known = total.join(usual, on=STEP, how="left").with_columns(pl.col("usual").fill_null(0.0))
        tables.append(known.select(*STEP, part=pl.lit(more), sec="usual"))
        tables.append(known.select(*STEP, part=pl.lit(slower), sec=pl.col("sec") - pl.col("usual")))
    return pl.concat(tables)
