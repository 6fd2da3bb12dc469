"""Sum up by server, and over time: calls in flight, tokens, queue, cache, retractions."""

from __future__ import annotations

from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.answers.routing.conversations import CACHE_KNOWN, followed_calls
from sglang_instrument.analysis.answers.routing.server_calls import CONVERSATION

_STEP: Final = ["step", "validate"]
_US: Final = 1e-6


def server_table(calls: pl.DataFrame, samples: pl.DataFrame) -> pl.DataFrame:
    """Return one row per server, in the order of names; a null server is of calls whose server is not known.

    Args:
        calls: Rows of `server_calls`, in the steps that are asked for.
        samples: Rows of `server_samples`; those of other steps are left out.

    Returns:
        server; role: "prefill" or "decode" where two servers work on a call, both of which have it; calls;
        conversations: that it had a call of; stayed, moved_here: later calls of conversations
        whose call before ran here, or elsewhere; mean_in_flight: calls in flight, on average over the time in
        which any server had calls, step by step; max_in_flight; call_sec: sum; p50_sec, p99_sec: of a call;
        queue_sec: sum over the calls that tell it; queue_share: in their time; prompt_tokens, cached_tokens:
        sums over the calls that tell both; cached_share; completion_tokens; tokens_per_sec: by the same time
        as `mean_in_flight`; retractions; waiting, kv_cache_share, kv_cache_running_share: the largest at any
        admission. Null where no process logged it.
    """
    followed = followed_calls(calls)
    window = _window_sec(calls)
    calls = of_each_server(calls)
    rows = _sums(calls, ["server"]).with_columns(
        mean_in_flight=pl.col("call_sec") / window if window else None,
        tokens_per_sec=pl.col("completion_tokens") / window if window else None,
    )
    stays = (
        followed.drop_nulls("moved")
        .group_by("server")
        .agg(stayed=(~pl.col("moved")).sum().cast(pl.Int64), moved_here=pl.col("moved").sum().cast(pl.Int64))
    )
    roles = calls.group_by("server").agg(pl.col("role").max())
    for more in (roles, stays, _most_load(calls), _gauges(calls, samples, ["server"])):
        rows = rows.join(more, on="server", how="left", nulls_equal=True, maintain_order="left")
    return rows.sort("server", nulls_last=True)


def of_each_server(calls: pl.DataFrame) -> pl.DataFrame:
    """Add the half of the server that read the prompt to each call that two servers worked on.

    Args:
        calls: Rows of `server_calls`, or what this function returned of them.

    Returns:
        The same columns, and role. The reader has a call until its cache is sent, and its prompt and queue.
    """
    if "role" in calls.columns:
        return calls
    is_apart = pl.col("prefill_server").is_not_null()
    inside = pl.sum_horizontal("queue_sec", "prefill_sec", "transfer_sec")
    halves = calls.filter(is_apart).with_columns(
        server="prefill_server",
        role=pl.lit("prefill"),
        call_sec=inside,
        end_us=pl.col("start_us") + (inside * 1e6).cast(pl.Int64),
        completion_tokens=None,
        retractions=None,
    )
    of_reader = ("queue_sec", "prompt_tokens", "cached_tokens")
    calls = calls.with_columns(
        *(pl.when(~is_apart).then(name).alias(name) for name in of_reader),
        role=pl.when(is_apart).then(pl.lit("decode")),
    )
    return pl.concat([calls, halves], how="diagonal_relaxed")


def load_over_time(calls: pl.DataFrame, samples: pl.DataFrame, slices: int | None = None) -> pl.DataFrame:
    """Return one row per step and server, or per slice of time and server.

    Args:
        calls: As for `server_table`.
        samples: As for `server_table`.
        slices: How many equal slices to cut the time from the first call to the last one's end into. None: a
            row for each step, or `slices` of 12 where there is only one step.

    Returns:
        step, validate (by step), or slice, from_sec, to_sec: since the first call; server; the sums of
        `server_table`. A call counts where it begins; `load` where it is in flight.
    """
    calls = of_each_server(calls)
    if slices is None and calls.select(_STEP).drop_nulls().n_unique() > 1:
        return _by_step(calls, samples)
    return _by_slice(calls, samples, slices or 12)


def _by_step(calls: pl.DataFrame, samples: pl.DataFrame) -> pl.DataFrame:
    key = [*_STEP, "server"]
    begun, ended = pl.col("start_us").min(), pl.col("end_us").max()
    windows = calls.group_by(_STEP).agg(window=(ended - begun) * _US)
    rows = _sums(calls, key).join(windows, on=_STEP, how="left", nulls_equal=True)
    rows = rows.with_columns(mean_in_flight=pl.col("call_sec") / pl.col("window")).drop("window")
    rows = rows.join(_gauges(calls, samples, key), on=key, how="left", nulls_equal=True)
    return rows.sort(key, nulls_last=True)


def _by_slice(calls: pl.DataFrame, samples: pl.DataFrame, slices: int) -> pl.DataFrame:
    known = calls.drop_nulls(["start_us", "end_us"])
    if known.is_empty():
        return _sums(known, ["server"])
    first, width = _first_and_width_us(known, slices)
    number = ((pl.col("start_us") - first) // width).clip(0, slices - 1).alias("slice")
    key = ["slice", "server"]
    rows = _sums(known.with_columns(number), key)
    gauges = _gauges(known.with_columns(number), samples.with_columns(number), key)
    loads = load_by_slice(known, slices).rename({"load": "mean_in_flight"})
    rows = loads.join(rows, on=key, how="left", nulls_equal=True)
    rows = rows.join(gauges, on=key, how="left", nulls_equal=True)
    since = [(pl.col("slice") + end).cast(pl.Float64) * width * _US for end in (0, 1)]
    rows = rows.with_columns(pl.col("calls").fill_null(0), from_sec=since[0], to_sec=since[1])
    return rows.sort(key, nulls_last=True)


def load_by_slice(calls: pl.DataFrame, slices: int) -> pl.DataFrame:
    """Return how many calls each server had in flight, on average, in equal slices of the whole time.

    Returns:
        slice, server, load: a row for each pair, 0 where the server had none.
    """
    known = of_each_server(calls).drop_nulls(["start_us", "end_us"])
    if known.is_empty():
        return pl.DataFrame(schema={"slice": pl.Int64, "server": pl.String, "load": pl.Float64})
    first, width = _first_and_width_us(known, slices)
    pairs = known.select("server").unique().join(pl.DataFrame({"slice": range(slices)}), how="cross")
    parts = []
    for number in range(slices):
        begin = first + number * width
        inside = pl.min_horizontal("end_us", begin + width) - pl.max_horizontal("start_us", begin)
        parts.append(
            known.select("server", inside=inside.clip(lower_bound=0))
            .group_by("server")
            .agg(load=pl.col("inside").sum() / width)
            .with_columns(slice=pl.lit(number, pl.Int64))
        )
    loads = pl.concat(parts)
    return pairs.join(loads, on=["slice", "server"], how="left", nulls_equal=True).select(
        pl.col("slice").cast(pl.Int64), "server", pl.col("load").fill_null(0.0)
    )


def _first_and_width_us(calls: pl.DataFrame, slices: int) -> tuple[int, int]:
    """Return the begin of the first call, and how long each slice is; slices reach to the last end."""
    first: Any = calls["start_us"].min()
    last: Any = calls["end_us"].max()
    return first, max(1, -(-(last - first) // slices))


def balance(rows: pl.DataFrame) -> dict[str, Any]:
    """Return how evenly servers share the work.

    Args:
        rows: Of `server_table`.

    Returns:
        servers: with a known name, without those that only read prompts, and conversations if any has some:
        others, such as those of a reward
        model, serve something else; busiest: the one with most time in calls; times_mean: its time in calls
        over the mean of all; None for a single server.
    """
    rows = rows.filter(pl.col("role").ne_missing("prefill"))  # their calls are those of others, too
    named = rows.drop_nulls("server").sort("call_sec", "server", descending=[True, False])
    named = named.drop_nulls("conversations") if named["conversations"].count() else named
    if len(named) < 2 or not named["call_sec"].sum():
        return {"servers": len(named), "busiest": None, "times_mean": None}
    mean: Any = named["call_sec"].mean()
    return {"servers": len(named), "busiest": named["server"][0], "times_mean": named["call_sec"][0] / mean}


def _sums(calls: pl.DataFrame, key: list[str]) -> pl.DataFrame:
    queued = pl.col("queue_sec").is_not_null()
    rows = calls.group_by(key).agg(
        calls=pl.len().cast(pl.Int64),
        conversations=pl.struct(CONVERSATION)
        .filter(pl.col("request_id").is_not_null())
        .n_unique()
        .cast(pl.Int64),
        call_sec=pl.col("call_sec").sum(),
        p50_sec=pl.col("call_sec").quantile(0.5, "linear"),
        p99_sec=pl.col("call_sec").quantile(0.99, "linear"),
        queue_sec=_known_sum("queue_sec"),
        of_queue=pl.col("call_sec").filter(queued).sum(),
        prompt_tokens=_known_sum("prompt_tokens", CACHE_KNOWN),
        cached_tokens=_known_sum("cached_tokens", CACHE_KNOWN),
        completion_tokens=_known_sum("completion_tokens"),
        retractions=_known_sum("retractions"),
    )
    return rows.with_columns(
        conversations=pl.when(pl.col("conversations") > 0).then("conversations"),
        queue_share=pl.when(pl.col("of_queue") > 0).then(
            (pl.col("queue_sec") / pl.col("of_queue")).clip(0, 1)
        ),
        cached_share=pl.col("cached_tokens") / pl.col("prompt_tokens"),
    ).drop("of_queue")


def _known_sum(name: str, where: pl.Expr | None = None) -> pl.Expr:
    """Return the sum of the known values; null if none is known."""
    values = pl.col(name) if where is None else pl.col(name).filter(where)
    return pl.when(values.count() > 0).then(values.sum())


def _window_sec(calls: pl.DataFrame) -> float:
    """Return the time in which servers had calls: from the first to the end of the last, step by step."""
    windows = calls.group_by(_STEP).agg(sec=(pl.col("end_us").max() - pl.col("start_us").min()) * _US)
    return float(windows.sort(_STEP)["sec"].sum() or 0.0)  # in one order: sums of floats depend on it


def _most_load(calls: pl.DataFrame) -> pl.DataFrame:
    """Return the most calls that each server had in flight at once."""
    known = calls.drop_nulls(["start_us", "end_us"])
    ends = [
        known.select("server", at=f"{end}_us", change=pl.lit(by)) for end, by in (("start", 1), ("end", -1))
    ]
    changes = pl.concat(ends).sort("at", "change")  # at the same time, ends come first
    running = changes.with_columns(pl.col("change").cum_sum().over("server"))
    return running.group_by("server").agg(max_in_flight=pl.col("change").max().cast(pl.Int64))


def _gauges(calls: pl.DataFrame, samples: pl.DataFrame, key: list[str]) -> pl.DataFrame:
    """Return the largest values that schedulers logged in the steps of some calls."""
    here = samples.join(calls.select(_STEP).unique(), on=_STEP, how="semi", nulls_equal=True)
    return here.group_by(key).agg(
        pl.col("waiting").max(),
        kv_cache_share=pl.col("kv_share").max(),
        kv_cache_running_share=pl.col("kv_held_share").max(),
    )
