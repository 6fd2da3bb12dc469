"""Join engine calls of a request with what the engine did for them: why did a turn take so long?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from sglang_instrument.analysis.answers.engine.gateway import CALLS, gateway_calls
from sglang_instrument.analysis.answers.engine.records import engine_files, iter_records
from sglang_instrument.analysis.answers.engine.requests import cached_engine_requests, engine_requests
from sglang_instrument.analysis.answers.engine.round_trips import ahead_us, of_worker
from sglang_instrument.analysis.answers.engine.used_again import with_names
from sglang_instrument.analysis.digests.attempts import in_attempt
from sglang_instrument.analysis.reading.files import RunFiles

if TYPE_CHECKING:
    from sglang_instrument.analysis.reading.files import File
    from sglang_instrument.analysis.run.opening import Run
    from sglang_instrument.analysis.verdict.evidence.finding import Finding

_LACKS_FIRST: Final = (pl.col("completion_tokens") > 0).fill_null(False) & pl.col("decode_sec").is_null()
_IS_WHOLE: Final = pl.col("scheduler").is_not_null() & pl.col("end_us").is_not_null() & ~_LACKS_FIRST
_PARTS: Final = ("queue_sec", "prefill_sec", "transfer_sec", "decode_sec", "retracted_sec")
_MOST: Final = 0.5  # a part with this share of a call's time is named as its reason
_SLOW: Final = 2.0  # times the usual seconds per token


def has_engine_logs(run: Run) -> bool:
    """Return whether any process of the engine wrote a log."""
    return bool(engine_files(run))


def joined_calls(
    run: Run, step: int | None = None, worker: int | None = None, validate: bool | None = None
) -> pl.DataFrame:
    """Return one row per engine call whose caller is known, in the order of time.

    Args:
        run: The run.
        step: Only calls of this step.
        worker: Only calls of this worker.
        validate: Only calls of validation, or only of training.

    Returns:
        step, validate, worker: of the caller; request_id, turn, event, called_us, call_sec: as it logged
        them; the columns of `engine_requests`; outside_sec: the call's time outside queue, prefill, transfer
        and decode; null if not known.
    """
    files = run.files_of(step, worker, validate)
    requests = engine_requests(run, files)
    calls = callers(run, files, requests)
    joined = calls.join(requests, on="rid", how="inner", maintain_order="left").sort("called_us")
    inside = sum((pl.col(name).fill_null(0.0) for name in _PARTS), start=pl.lit(0.0))
    outside = (pl.col("call_sec") - inside).clip(lower_bound=0.0)
    return joined.with_columns(outside_sec=pl.when(_IS_WHOLE).then(outside))


def calls_of_request(run: Run, row: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the calls of a request as `joined_calls` has them, each with `why` it took so long.

    Args:
        run: The run.
        row: The request, as `request_table` has it.
    """
    if not has_engine_logs(run):
        return []
    calls = joined_calls(run, row["step"], row["worker"], row["validate"])
    usual = usual_token_sec(calls)
    mine = calls.filter(request_id=row["request_id"]).to_dicts()
    is_of_attempt = in_attempt(run.everything.of_workers().requests, row)
    return [{**call, "why": why(call, usual)} for call in mine if is_of_attempt(call["called_us"])]


def callers(run: Run, files: Sequence[File], requests: pl.DataFrame) -> pl.DataFrame:
    """Return the caller of each of `engine_requests`; of nested spans, the outermost, the longest.

    Calls that no caller logged are those of the requests that their HTTP headers name: `gateway_calls`.
    """
    files = [file for file in files if file.place is not None and file.place.folder != "engine"]
    rows = [
        {
            "rid": fields.rid,
            "step": file.place.step,
            "validate": file.place.validate,
            "worker": file.place.worker,
            "request_id": str(fields.request_id),
            "turn": fields.turn,
            "event": line.event,
            "called_us": line.start_us,
            "call_sec": line.duration_sec,
        }
        for file, line, fields in iter_records(run, files, keys=("rid",))
        if file.place is not None
        and isinstance(fields.rid, str)
        and fields.request_id is not None
        and line.duration_sec is not None
    ]
    table = with_names(pl.DataFrame(rows, schema=CALLS, strict=False), requests)
    table = table.sort("call_sec", descending=True).unique("rid", keep="first", maintain_order=True)
    through_gateways = gateway_calls(run).select(*CALLS)
    if through_gateways.is_empty():
        return table
    places = {(file.place.step, file.place.validate, file.place.worker) for file in files if file.place}
    mine = [place in places for place in through_gateways.select("step", "validate", "worker").iter_rows()]
    through_gateways = through_gateways.filter(pl.Series(mine, dtype=pl.Boolean))
    return pl.concat([table, through_gateways.join(table, on="rid", how="anti")])


def engine_request_table(run: Run) -> pl.DataFrame:
    """Return one row per engine request: `engine_requests` with the `step`, and `validate`, of its arrival.

    Processes of the engine do not know the step: it is the last step that any worker had begun. Requests
    before the first step have null.
    """
    return with_step(engine_requests(run), run)


def with_step(requests: pl.DataFrame, run: Run) -> pl.DataFrame:
    """Add `step` and `validate` to rows with `start_us` on the clock of the median worker."""
    begun = (
        run.digest.of_workers()
        .steps.filter(pl.col("step").is_not_null())
        .with_columns(pl.col("start_us") - of_worker(ahead_us(run)))
        .group_by("step", "validate")
        .agg(start_us=pl.col("start_us").min())
        .sort("start_us")
    )
    rows = requests.sort("start_us")
    return rows.join_asof(begun.select("start_us", "step", "validate"), on="start_us", strategy="backward")


def engine_summary(run: Run) -> dict[str, Any] | None:
    """Return the shares of the time in the engine over a run; None if no process of the engine logged.

    Returns:
        requests; retractions, None if no scheduler logged them; shares: as `shares` returns them; of_others:
        how many requests of other clients of the same servers are left out.
    """
    if not has_engine_logs(run):
        return None
    requests = cached_engine_requests(run)
    of_run = _of_this_run(run, requests)
    return {**engine_summary_of(of_run), "of_others": len(requests) - len(of_run)}


def _of_this_run(run: Run, requests: pl.DataFrame) -> pl.DataFrame:
    """Leave out what servers that another run started did for others: by ids, or by time without ids."""
    newest = RunFiles.of(run.files).newest
    runs = {run_id for folder, run_id in newest.items() if folder != "engine"}
    steps = run.digest.of_workers().steps
    if newest.get("engine") in runs or steps.is_empty():
        return requests
    called = requests.filter(pl.col("rid").is_in(callers(run, run.files, requests)["rid"].implode()))
    if len(called):
        return called
    return requests.filter(pl.col("start_us").is_between(steps["start_us"].min(), steps["end_us"].max()))


def engine_summary_of(requests: pl.DataFrame) -> dict[str, Any]:
    """Return the same for some rows of `engine_request_table`."""
    retractions = int(requests["retractions"].sum()) if requests["retractions"].count() else None
    return {"requests": len(requests), "retractions": retractions, "shares": shares(requests)}


def shares(requests: pl.DataFrame) -> dict[str, float | None]:
    """Return the shares of queue, prefill, decode, transfer and retractions in the time, from 0 to 1.

    Requests without a logged end or first token do not count: their last phase is not known. The shares are
    None if no request counts; {} if no scheduler logged anything.
    """
    known = requests.filter(_IS_WHOLE)
    sums = {name: float(known[f"{name}_sec"].sum() or 0.0) for name in ("queue", "prefill", "decode")}
    for rare in ("transfer", "retracted"):
        rare_sec = float(known[f"{rare}_sec"].sum() or 0.0)
        sums |= {rare: rare_sec} if rare_sec else {}
    total = sum(sums.values())
    if not total:
        return dict.fromkeys(sums) if requests["scheduler"].count() else {}
    return {name: sum_sec / total for name, sum_sec in sums.items()}


def why(call: dict[str, Any], usual_token_sec: float | None = None) -> str:
    """Return why a call of `joined_calls` took so long, such as "148 s of 150 s in the scheduler's queue".

    Args:
        call: A row.
        usual_token_sec: The median of `token_sec`, to recognise slow decoding.
    """
    whole = max(call["call_sec"], 1e-9)
    reasons = []
    for column, words in _WORDS.items():
        part = call[column]
        if part is not None and part >= _MOST * whole:
            reasons.append(f"{_sec(part)} s of {_sec(whole)} s {words}")
    pace = token_sec(call)
    if pace is not None and usual_token_sec and pace > _SLOW * usual_token_sec:
        reasons.append(f"a token took {pace / usual_token_sec:.1f} times as long as usual")
    if call["retractions"]:
        number = call["retractions"]
        reasons.append(f"retracted {'once' if number == 1 else f'{number} times'}")
    return ", ".join(reasons)


_WORDS: Final = {
    "queue_sec": "in the scheduler's queue",
    "prefill_sec": "in prefill",
    "transfer_sec": "until its cache had reached the server that decodes",
    "decode_sec": "in decode",
    "retracted_sec": "until a retraction was made good",
    "outside_sec": "outside the scheduler",
}


def token_sec(call: dict[str, Any]) -> float | None:
    """Return the seconds per token in decode; None if they are not known."""
    tokens, spent = call["completion_tokens"], call["decode_sec"]
    return None if spent is None or not tokens or tokens < 2 else spent / (tokens - 1)


def usual_token_sec(calls: pl.DataFrame) -> float | None:
    """Return the median of the seconds per token, over all calls that have them."""
    pace = calls.filter(pl.col("completion_tokens") > 1).select(
        pl.col("decode_sec") / (pl.col("completion_tokens") - 1)
    )
    return pace.to_series().drop_nulls().median()  # type: ignore[return-value]


def explain(run: Run, finding: Finding) -> str:
    """Return why the slowest engine call behind a finding took so long; "" if that is not known."""
    if finding.step is None or finding.event not in (None, "engine") or not has_engine_logs(run):
        return ""
    calls = joined_calls(run, finding.step, finding.worker, finding.validate)
    asked = calls if finding.request_id is None else calls.filter(request_id=finding.request_id)
    turn = finding.evidence.get("turn")
    if turn is not None:  # callers that log no turn keep all of the request's calls
        asked = asked.filter(pl.col("turn").is_null() | (pl.col("turn") == turn))
    if asked.is_empty():
        return ""
    slowest = asked.sort("call_sec").row(-1, named=True)
    reason = why(slowest, usual_token_sec(calls))
    if not reason:
        return ""
    which = "" if slowest["turn"] is None else f", turn {slowest['turn'] + 1}"
    return f"its longest engine call (request {slowest['request_id']}{which}): {reason}"


def _sec(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"
