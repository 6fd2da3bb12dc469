"""Propose to begin new samples one by one, where whole groups wait for their slowest member."""

from collections.abc import Iterator

import polars as pl

from sglang_instrument.analysis.advice.evidence.grounds import Grounds
from sglang_instrument.analysis.advice.evidence.lever import ProposedChange, lever
from sglang_instrument.analysis.changes.refill import refill_steps


@lever("refill by sample", "simulated", "group-wait", model_error=0.2)
def refill(grounds: Grounds) -> Iterator[ProposedChange]:
    """Yield the change from groups to samples, where requests log their group."""
    requests = grounds.requests
    if not len(requests) or requests["group"].null_count() == len(requests):
        return
    steps = refill_steps(grounds.run.digest, "sample").filter(~pl.col("validate"))
    per_step = steps.select(pl.col("recorded_sec") - pl.col("predicted_sec")).to_series().to_list()
    if not any(sec > 0 for sec in per_step):
        return
    setting = grounds.setting("refill")
    yield ProposedChange(
        setting.name,
        "by group",
        "by sample",
        costs="samples of one group may run under different weights",
        rests_on="each sample takes its recorded time, as many in flight as recorded",
        command="whatif LOGS --refill sample",
        per_step=per_step,
    )
