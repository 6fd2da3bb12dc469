"""Tell how busy schedulers kept their GPUs, from the forward passes in SGLang's own stream of metrics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from sglang_instrument.analysis.answers.engine.join import with_step
from sglang_instrument.analysis.answers.engine.records import engine_files
from sglang_instrument.analysis.answers.engine.round_trips import ahead_us
from sglang_instrument.analysis.reading.records.engine_fields import EngineFields
from sglang_instrument.analysis.reading.times import epoch_us
from sglang_instrument.analysis.run.newest_records import newest_records
from sglang_instrument.schema import FORWARD_PASS

if TYPE_CHECKING:
    from sglang_instrument.analysis.run.opening import Run

_SCHEMA: Final[dict[str, Any]] = {"scheduler": pl.String, "at_us": pl.Int64, "gpu_sec": pl.Float64}
#: A scheduler that has no pass for so long has no work: that is not the GPU waiting for the CPU.
_PAUSE_US: Final = 1_000_000


class PassFields(EngineFields, gc=False, omit_defaults=True):
    """The fields of a pass that are read here."""

    gpu_sec: float | None = None


def busy_table(run: Run, chosen: pl.Expr | None = None) -> pl.DataFrame:
    """Return one row per scheduler that has the stream on.

    Args:
        run: The run.
        chosen: A filter by step and validate; None: everything.

    Returns:
        scheduler; forward_passes; forward_sec: their time on the GPU; forward_share: of the time from one
        pass to the next, where that is less than a second, the part in which a pass ran on the GPU. In the
        rest the GPU waited for the CPU.
    """
    passes = pl.DataFrame(list(_passes(run)), schema=_SCHEMA, strict=False)
    if chosen is not None and len(passes):
        placed = with_step(passes.with_columns(start_us="at_us"), run)
        passes = placed.with_columns(pl.col("validate").fill_null(False)).filter(chosen).select(*_SCHEMA)
    passes = passes.sort("scheduler", "at_us", maintain_order=True)
    passes = passes.with_columns(since_us=pl.col("at_us").diff().over("scheduler"))
    is_busy = pl.col("since_us") < _PAUSE_US
    spent_sec, since_sec = (
        pl.col("gpu_sec").filter(is_busy).sum(),
        pl.col("since_us").filter(is_busy).sum() / 1e6,
    )
    return passes.group_by("scheduler").agg(
        forward_passes=pl.len().cast(pl.Int64),
        forward_sec=pl.col("gpu_sec").sum(),
        forward_share=pl.when(since_sec > 0).then((spent_sec / since_sec).clip(upper_bound=1.0)),
    )


def _passes(run: Run) -> Iterator[dict[str, Any]]:
    ahead = ahead_us(run)
    for file, line, fields in newest_records(run, engine_files(run), PassFields, events=(FORWARD_PASS,)):
        scheduler = "" if file.place is None else file.place.stem
        at_us = epoch_us(line.timestamp) if line.start_us is None else line.end_us
        if at_us is not None and fields.gpu_sec is not None and fields.gpu_sec >= 0:
            at_us -= ahead.get(scheduler, 0)
            yield {"scheduler": scheduler, "at_us": at_us, "gpu_sec": fields.gpu_sec}
