"""Tell whether engine calls were slow, or only what their servers' load makes of them.

The physical fact: a token takes the longer, the more calls decode beside it, and while others read prompts.
A worker sees its own calls alone; where servers log, what each ran at the time is known.
"""

from collections.abc import Sequence

import polars as pl

from sglang_instrument.analysis.verdict.evidence.effects import median_of_others
from sglang_instrument.analysis.verdict.evidence.run_evidence import Evidence
from sglang_instrument.analysis.verdict.evidence.servers.server_parts import server_parts

_MOST_OF_IT: float = 0.5  # of what the calls took more


def beyond_load(evidence: Evidence, slow: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Return the slow steps, or workers in them, whose calls took longer than their servers' load explains.

    What is left without the queue, the prefills of other calls, and what so many tokens take beside so many
    calls must make half of the excess. Where servers did not log, nothing is taken away.

    Args:
        evidence: The evidence.
        slow: The columns of `by`, and `excess`, the logarithm of how many times the usual the calls took.
        by: Of what `slow` has rows: steps, or workers in them.
    """
    calls = server_parts(evidence)
    if slow.is_empty() or calls.is_empty():
        return slow
    slower = [pl.col(f"{part}_sec") - pl.col(f"{part}_usual_sec") for part in ("decode", "prefill")]
    rest = pl.sum_horizontal(*slower, "network_sec", "tokenizer_sec")
    shares = calls.group_by(by).agg(share=rest.sum() / pl.col("call_sec").sum())
    shares = shares.with_columns(more=pl.col("share") - median_of_others("share", ["validate"]))
    known = slow.join(shares.select(*by, "more"), on=by, how="left", maintain_order="left")
    due = _MOST_OF_IT * (1 - (-pl.col("excess")).exp())
    return known.filter((pl.col("more") >= due).fill_null(value=True)).drop("more")
