"""Tell where each engine call spent its time, by the engine's own logs: queue, prefill, transfer, decode."""

from collections.abc import Collection
from dataclasses import replace
from typing import Final

import polars as pl

from sglang_instrument.analysis.answers.engine.join import callers, has_engine_logs
from sglang_instrument.analysis.answers.engine.requests import cached_engine_requests, with_whole_queue
from sglang_instrument.analysis.ledger.deciding_paths import Paths
from sglang_instrument.analysis.run.cached_tables import cached_table
from sglang_instrument.analysis.run.opening import Run

_OF_CALLER: Final = ("step", "validate", "worker", "request_id", "turn", "called_us", "call_sec")
_OF_ENGINE: Final = ("queue_sec", "prefill_sec", "transfer_sec", "decode_sec")
_SIZES: Final = ("prompt_tokens", "cached_tokens", "completion_tokens")


def call_times(run: Run) -> pl.DataFrame | None:
    """Return one row per engine call whose caller is known; None if no process of the engine logged.

    From the cache, unless the run's files changed.

    Returns:
        step, validate, worker, request_id, turn, called_us, call_sec: as the caller logged them; queue_sec,
        prefill_sec, transfer_sec, decode_sec, prompt_tokens, cached_tokens, completion_tokens: as the
        engine's processes logged them, null where they did not; what retractions cost is time in the queue.
    """
    if not has_engine_logs(run):
        return None
    return cached_table(run, "call_times", lambda: _made(run))


def paths_of(run: Run, steps: Collection[int] | None = None) -> Paths:
    """Return the critical paths of a run, engine calls split as the engine's own logs tell.

    Args:
        run: The run.
        steps: The paths of workers in other steps are left out: a ledger then holds for these steps alone.
            Windows and clocks are those of the whole run. None: all steps.
    """
    if steps is None:
        return Paths(run.digest, call_times(run))
    asked = (pl.col("role") != "worker") | pl.col("step").is_in(list(steps))
    return Paths(replace(run.digest, path=run.digest.path.filter(asked)), call_times(run))


def _made(run: Run) -> pl.DataFrame:
    requests = with_whole_queue(cached_engine_requests(run))
    calls = callers(run, run.files, requests).join(requests, on="rid", maintain_order="left")
    return calls.select(*_OF_CALLER, *_OF_ENGINE, *_SIZES)
