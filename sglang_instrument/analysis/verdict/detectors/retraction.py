"""Find a decoder that became slow when its cache was full and requests were retracted, in a server's log."""

from datetime import datetime, timezone
from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.verdict.evidence.detector import Findings, NamedCause, detector
from sglang_instrument.analysis.verdict.evidence.finding import Finding, seconds, step_name
from sglang_instrument.analysis.verdict.evidence.run_evidence import LEAST_SEC, OF_STEP, Evidence

RETRACTION: Final = NamedCause(
    "retraction",
    "worker",
    "in the log of an SGLang server, decoding was at most half as fast a request after the first retraction "
    "of a step as before it. The cost is an estimate: as if it had gone on as fast",
    "run fewer requests at once (`--max-running-requests`), raise `--schedule-conservativeness` or "
    "`--mem-fraction-static`; `events LOGS{step}{worker}`",
    not_planted="only logs of servers tell it, and planted runs are logs of ours",
)
_LINES: Final = 5  # before a retraction, which tell how fast the decoder was
_FEWEST: Final = 3  # before and after it
_FALL: Final = 2.0  # so many times as fast before as after, a request
_NEEDED: Final = ("running", "tokens_per_sec", "kind", "worker", "step", "start_us")


@detector(RETRACTION)
def find_retractions(evidence: Evidence) -> Findings:
    """Yield a finding for each worker and step in which decoding was slow after the first retraction.

    Our own log of an engine tells more of a retraction; there the time is that of its requests.
    """
    run = evidence.run
    if run is None or run.other is None:
        return
    rows = run.rows_of_other
    if not {*_NEEDED, "retracted"} <= set(rows.columns):
        return
    event = pl.col("event").cast(pl.String)
    retracted = rows.filter(event == "scheduler_retract").sort("start_us")
    lines = (
        rows.filter(event == "scheduler_batch", kind="Decode").select(_NEEDED).drop_nulls().sort("start_us")
    )
    lines = lines.filter((pl.col("running") > 0) & (pl.col("tokens_per_sec") > 0))
    for (worker, step), events in retracted.partition_by("worker", "step", as_dict=True).items():
        of_place = lines.filter(worker=worker, step=step)
        finding = _finding(of_place, events.to_dicts(), int(worker), int(step))
        if finding is not None:
            yield finding


def _finding(lines: pl.DataFrame, events: list[dict[str, Any]], worker: int, step: int) -> Finding | None:
    """Return what the first retraction of a worker in a step cost; None unless decoding fell behind it."""
    when_us = events[0]["start_us"]
    before = lines.filter(pl.col("start_us") <= when_us).tail(_LINES)
    after = lines.filter(pl.col("start_us") > when_us)
    if min(len(before), len(after)) < _FEWEST:
        return None
    speed = pl.col("tokens_per_sec") / pl.col("running")
    fast, slow = (float(part.select(speed.median()).item()) for part in (before, after))
    if fast < _FALL * slow:
        return None
    begun_us, end_us = int(lines["start_us"].min() or 0), int(lines["start_us"].max() or 0)  # type: ignore[arg-type]
    slow_sec = (end_us - when_us) / 1e6
    lost_sec = slow_sec * (1 - slow / fast)
    if lost_sec <= max(LEAST_SEC, OF_STEP * (end_us - begun_us) / 1e6):
        return None
    rates = [float(part.select(pl.col("tokens_per_sec").median()).item()) for part in (before, after)]
    count = sum(event["retracted"] or 1 for event in events)
    clock = datetime.fromtimestamp(when_us / 1e6, timezone.utc).strftime("%H:%M:%S")
    return Finding(
        cause=RETRACTION.name,
        scope="worker",
        step=step,
        worker=worker,
        lost_sec=lost_sec,
        sentence=(
            f"{step_name(step, validate=False)}: worker {worker} decoded {rates[0]:,.0f} tokens/s until its "
            f"cache was full at {clock}, and {rates[1]:,.0f} tokens/s after it (retracted: {count:,}); this "
            f"costs about {seconds(lost_sec)}"
        ),
        event="scheduler_retract",
        evidence={
            "retracted": count,
            "retractions": len(events),
            "tokens_per_sec_before": rates[0],
            "tokens_per_sec_after": rates[1],
        },
    )
