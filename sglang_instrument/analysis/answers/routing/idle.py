"""Say what share of the servers' time was idle, and why: what kept requests from them at each moment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from sglang_instrument.analysis.answers.engine.records import engine_files
from sglang_instrument.analysis.answers.engine.requests import called_requests
from sglang_instrument.analysis.answers.engine.round_trips import ahead_us
from sglang_instrument.analysis.answers.routing.gauges import gpu_table
from sglang_instrument.analysis.answers.routing.server_calls import server_calls
from sglang_instrument.analysis.ledger.intervals import one_at_a_time, sec_between
from sglang_instrument.analysis.ledger.loop import Loop
from sglang_instrument.analysis.ledger.loop_lanes import (
    NOT_RECORDED,
    REWARD,
    ROLLOUT_WAITS,
    VALIDATION,
    WEIGHTS,
    looked_up,
)
from sglang_instrument.analysis.ledger.loop_of_run import loop_of
from sglang_instrument.analysis.reading.records.engine_fields import EngineFields
from sglang_instrument.analysis.run.newest_records import newest_records

if TYPE_CHECKING:
    from sglang_instrument.analysis.run.opening import Run

SERVES: Final = "serving calls"
BATCHES: Final = "running batches"
RESULTS: Final = "taking results"
BETWEEN: Final = "between batches"
TAIL: Final = "tail"
ELSEWHERE: Final = "requests on other servers"
TOOLS: Final = "tools"
AROUND: Final = "work around requests"
CLIENT: Final = "between calls"
#: The parts of a server's time, and what each is; the first four are no idle time.
PARTS: Final = {
    SERVES: "calls in flight; where schedulers log no batches",
    BATCHES: "the scheduler runs a batch",
    RESULTS: "the scheduler takes the results of a batch: it waits for the GPU, then computes in Python",
    BETWEEN: "calls in flight, but no batch: the engine's own Python, or its other processes",
    TAIL: "the last fifth of a step's requests runs on other servers",
    ELSEWHERE: "requests are in other servers, and none is here",
    TOOLS: "most requests in flight are in tools, interactions or rewards, and have no call",
    "rewards": "nothing but rewards goes on in the rollout",
    CLIENT: "requests are in flight, and none has a call: the client's own work",
    AROUND: "workers prepare or finish their batch",
    "trainer": "the rollout waits for the trainer",
    "weight sync": "weights are sent",
    "validation": "a validation runs, and has no call here",
    "not recorded": "no record says what the rollout does",
}
SERVING: Final = (SERVES, BATCHES, RESULTS, BETWEEN)
_LATE: Final = 0.8  # of a step's requests have ended where its tail begins
_BATCH_EVENTS: Final = {"scheduler_batch": BATCHES, "scheduler_result": RESULTS}
_SCHEMA: Final[dict[str, Any]] = {
    "server": pl.String,
    "part": pl.String,
    "is_idle": pl.Boolean,
    "sec": pl.Float64,
    "share": pl.Float64,
}
_SPAN: Final = {"from_us": pl.Int64, "to_us": pl.Int64}


def idle_table(run: Run) -> pl.DataFrame:
    """Return what each server's time in the training steps was spent on; its shares add up to 1.

    Args:
        run: The run.

    Returns:
        server: null for all servers together; part: one of `PARTS`; is_idle: whether no call was in flight
        on the server; sec; share: of the time of the steps. Servers without any call are not known.
    """
    calls = server_calls(run).drop_nulls(["server", "start_us", "end_us"])
    servers: list[str] = calls["server"].unique().sort().to_list()
    loop = loop_of(run)
    if not servers or loop.moments.is_empty():
        return pl.DataFrame(schema=_SCHEMA)
    busy = {server: _merged(calls.filter(server=server)) for server in servers}
    batches, tails, counts = _batches(run, calls), _tails(loop), _in_tools(loop, calls)
    tables = [
        _of_server(
            loop,
            busy[server],
            _merged_spans([busy[other] for other in servers if other != server]),
            tails,
            counts,
            batches.get(server),
        ).with_columns(server=pl.lit(server))
        for server in servers
    ]
    parts = pl.concat(tables)
    whole = parts.group_by("part", maintain_order=True).agg(
        pl.col("sec").sum(), server=pl.lit(None, pl.String)
    )
    order = {part: number for number, part in enumerate(PARTS)}
    table = pl.concat([whole.select("server", "part", "sec"), parts.select("server", "part", "sec")])
    return table.select(
        "server",
        "part",
        is_idle=~pl.col("part").is_in(list(SERVING)),
        sec="sec",
        share=pl.col("sec") / pl.col("sec").sum().over("server"),
    ).sort("server", pl.col("part").replace_strict(order), nulls_last=False)


def gpu_shares(run: Run) -> dict[str, float | None] | None:
    """Return how busy the GPUs were, from 0 to 1; None without their gauges in the training steps.

    Returns:
        serving_busy_share: while calls were in flight on any server; idle_busy_share: while none was; null
        where no gauge is of such a time.
    """
    gauges = gpu_table(run).drop_nulls(["at_us", "busy_share"]).select("at_us", "busy_share").sort("at_us")
    loop = loop_of(run)
    if gauges.is_empty() or loop.moments.is_empty():
        return None
    calls = server_calls(run).drop_nulls(["start_us", "end_us"])
    serving = _merged(calls).with_columns(serving=pl.lit(True))
    steps = loop.lanes.windows.select("from_us", "to_us", inside=pl.lit(True))
    points = gauges.with_columns(until_us=pl.col("at_us"))
    for table in (steps, serving):
        points = looked_up(points, table)
    inside = points.filter(pl.col("inside").fill_null(False))
    if inside.is_empty():
        return None
    is_serving = pl.col("serving").fill_null(False)
    means = inside.select(
        serving=pl.col("busy_share").filter(is_serving).mean(),
        idle=pl.col("busy_share").filter(~is_serving).mean(),
    ).row(0)
    return {"serving_busy_share": means[0], "idle_busy_share": means[1]}


def idle_words(table: pl.DataFrame, gpus: dict[str, float | None] | None) -> list[str]:
    """Return what `idle_table` and `gpu_shares` say in sentences."""
    whole = table.filter(pl.col("server").is_null())
    if whole.is_empty():
        return ["idle: no server is known, or no step is complete"]
    idle = whole.filter("is_idle").sort("share", descending=True)
    share = float(idle["share"].sum())
    reasons = [
        f"{100 * row['share']:.0f} % {row['part']}"
        for row in idle.iter_rows(named=True)
        if row["share"] >= 0.005
    ]
    why = f": {', '.join(reasons)}" if reasons else ""
    sentences = [f"the servers had no call in {100 * share:.0f} % of the time of the steps{why}"]
    if gpus is not None and gpus["serving_busy_share"] is not None:
        busy = gpus["serving_busy_share"]
        sentences.append(
            f"GPUs were busy in {100 * busy:.0f} % of the time in which calls were in flight: in the other "
            f"{100 * (1 - busy):.0f} % the engine's own work kept them waiting"
        )
    return sentences


def _of_server(
    loop: Loop,
    busy: pl.DataFrame,
    others: pl.DataFrame,
    tails: pl.DataFrame,
    in_tools: pl.DataFrame,
    batches: pl.DataFrame | None,
) -> pl.DataFrame:
    """Return the seconds of each part of one server's time: part, sec."""
    moments = loop.moments.select("from_us", "to_us", "rollout", "flying")
    tables = [
        moments,
        busy.with_columns(here=pl.lit(True)),
        others.with_columns(elsewhere=pl.lit(True)),
        tails.with_columns(late=pl.lit(True)),
        in_tools.with_columns(in_tools=pl.lit(True)),
        *([] if batches is None else [batches]),
    ]
    ends = [table[name] for table in tables for name in ("from_us", "to_us")]
    points = pl.concat(ends).unique().sort().to_frame("at_us")
    points = points.with_columns(until_us=pl.col("at_us").shift(-1)).drop_nulls()
    for table in tables:
        points = looked_up(points, table)
    points = points.drop_nulls("rollout").with_columns(
        pl.col("here", "elsewhere", "late", "in_tools", "flying").fill_null(False),
        sec=sec_between("at_us", "until_us"),
    )
    served = pl.lit(SERVES) if batches is None else pl.col("batch").fill_null(BETWEEN)
    part = pl.when("here").then(served).otherwise(_reason())
    # In an order of their own: sums of them, which follow, are then the same in every reading.
    parts: pl.DataFrame = points.group_by(part=part).agg(pl.col("sec").sort().sum()).sort("part")
    return parts


def _reason() -> pl.Expr:
    """Return why a server without a call has none."""
    rollout = pl.col("rollout")
    named = {WEIGHTS: "weight sync", VALIDATION: "validation", ROLLOUT_WAITS: "trainer"}
    open_part = {"tools": TOOLS, REWARD: "rewards"}
    work = {"tools": TOOLS, REWARD: "rewards", NOT_RECORDED: "not recorded"}
    return (
        pl.when(rollout.is_in(list(named)))
        .then(rollout.replace(named))
        .when(pl.col("elsewhere") & pl.col("late"))
        .then(pl.lit(TAIL))
        .when(pl.col("elsewhere") & pl.col("in_tools"))
        .then(pl.lit(TOOLS))
        .when("elsewhere")
        .then(pl.lit(ELSEWHERE))
        .when("flying")
        .then(rollout.replace_strict(open_part, default=CLIENT, return_dtype=pl.String))
        .otherwise(rollout.replace_strict(work, default=AROUND, return_dtype=pl.String))
    )


def _merged(calls: pl.DataFrame) -> pl.DataFrame:
    """Return when calls were in flight: from_us, to_us."""
    spans = calls.select(from_us=pl.col("start_us").cast(pl.Int64), to_us=pl.col("end_us").cast(pl.Int64))
    return one_at_a_time(spans, [])


def _merged_spans(tables: list[pl.DataFrame]) -> pl.DataFrame:
    return one_at_a_time(pl.concat([pl.DataFrame(schema=_SPAN), *tables]), [])


def _tails(loop: Loop) -> pl.DataFrame:
    """Return the end of each step in which the last fifth of its requests runs; none where steps overlap."""
    if loop.shape() == "asynchronous":
        return pl.DataFrame(schema=_SPAN)
    requests = _requests(loop)
    begin = pl.col("end_us").quantile(_LATE, "lower").cast(pl.Int64)
    tails = requests.group_by("step").agg(from_us=begin, to_us=pl.col("end_us").max())
    return one_at_a_time(tails.select("from_us", "to_us"), [])


def _in_tools(loop: Loop, calls: pl.DataFrame) -> pl.DataFrame:
    """Return when most of the requests in flight have no call in flight: from_us, to_us."""
    changes = [
        table.select(at_us=pl.col(time).cast(pl.Int64), of=pl.lit(of), change=pl.lit(change))
        for of, table in (("requests", _requests(loop)), ("calls", calls.filter(~pl.col("validate"))))
        for time, change in (("start_us", 1), ("end_us", -1))
    ]
    counts = (
        pl.concat(changes)
        .group_by("at_us")
        .agg(pl.col("change").filter(of=of).sum().alias(of) for of in ("requests", "calls"))
    )
    counts = counts.sort("at_us").with_columns(pl.col("requests", "calls").cum_sum())
    counts = counts.with_columns(to_us=pl.col("at_us").shift(-1)).drop_nulls()
    return counts.filter(2 * pl.col("calls") < pl.col("requests")).select(
        pl.col("at_us").alias("from_us"), "to_us"
    )


def _requests(loop: Loop) -> pl.DataFrame:
    """Return the requests of training steps on the clock of the workers: step, start_us, end_us."""
    ahead = loop.lanes.paths.aligned.group_by("worker").agg(pl.col("ahead_us").median().cast(pl.Int64))
    requests = loop.lanes.everything.of_workers().requests.filter(~pl.col("validate"))
    times = [(pl.col(name) - pl.col("ahead_us").fill_null(0)) for name in ("start_us", "end_us")]
    return requests.join(ahead, on="worker", how="left").select("step", *times).drop_nulls()


def _batches(run: Run, calls: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """Return the batches and their results by server: from_us, to_us, batch; only where they are logged."""
    rows = list(_batch_rows(run))
    if not rows:
        return {}
    schema = {"scheduler": pl.String, "batch": pl.String, **_SPAN}
    batches = pl.DataFrame(rows, schema=schema, orient="row")
    ran = called_requests(run).select("rid", "scheduler").drop_nulls()
    pairs = calls.select("rid", "server").drop_nulls().join(ran, on="rid")
    most = pairs.group_by("server").agg(pl.col("scheduler").mode().sort().first())
    by_server = {}
    for server, scheduler in most.iter_rows():
        of_scheduler = batches.filter(scheduler=scheduler).select("batch", "from_us", "to_us")
        if len(of_scheduler):
            by_server[server] = one_at_a_time(of_scheduler, [])
    return by_server


def _batch_rows(run: Run) -> Iterator[tuple[str, str, int, int]]:
    ahead = ahead_us(run)
    for file, line, _ in newest_records(run, engine_files(run), EngineFields, events=tuple(_BATCH_EVENTS)):
        if file.place is None or line.start_us is None:
            continue
        scheduler = file.place.stem
        shift = ahead.get(scheduler, 0)
        yield scheduler, _BATCH_EVENTS[line.event], line.start_us - shift, line.end_us - shift
