"""Tell whether engine calls were slow, or only what their servers' load makes of them.

The physical fact: a token takes the longer, the more calls decode beside it, and while others read prompts.
A worker sees its own calls alone; where servers log, what each ran at the time is known.
"""

from collections.abc import Sequence
from typing import Final

import polars as pl

from sglang_instrument.analysis.verdict.evidence.effects import median_of_others
from sglang_instrument.analysis.verdict.evidence.run_evidence import Evidence
from sglang_instrument.analysis.verdict.evidence.servers.server_parts import server_parts

_MOST_OF_IT: Final = 0.5  # of what the calls took more


def beyond_load(evidence: Evidence, slow: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Return the slow steps, or workers in them, whose calls took longer than their servers' load explains.

    What is left without the queue, the prefills of other calls, and what so many tokens take beside so many
    calls must make half of the excess; or the tokens alone must have taken so much longer, where other parts
    of the calls took most of the time. Where servers did not log, nothing is taken away.

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
    decoded = pl.col("decode_sec").sum() / pl.col("decode_usual_sec").sum()
    cells = calls.group_by(by).agg(share=rest.sum() / pl.col("call_sec").sum(), decoded=decoded.log())
    cells = cells.with_columns(
        pl.col(name) - median_of_others(name, ["validate"]) for name in ("share", "decoded")
    )
    known = slow.join(cells, on=by, how="left", maintain_order="left")
    is_more = pl.col("share") >= _MOST_OF_IT * (1 - (-pl.col("excess")).exp())
    is_slow = pl.col("decoded") >= _MOST_OF_IT * pl.col("excess")
    return known.filter((is_more | is_slow).fill_null(value=True)).drop("share", "decoded")
