"""Follow conversations from call to call: did each stay at its server, and was its prompt in the cache?"""

from __future__ import annotations

from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.answers.routing.server_calls import CONVERSATION

#: Whether a call tells how much of its prompt was in the cache.
CACHE_KNOWN: Final = pl.col("cached_tokens").is_not_null() & (pl.col("prompt_tokens") > 0)


def followed_calls(calls: pl.DataFrame) -> pl.DataFrame:
    """Return the calls of known requests, each with what the call before it in its conversation left.

    Args:
        calls: Rows of `server_calls`.

    Returns:
        The columns of `server_calls`; server: the one that read the prompt, whose cache counts; number: of
        the call within its request, from 0; moved: whether another
        server had the call before it; null for a first call, or an unknown server; expected_tokens: how many
        tokens of the prompt that server has read or written, if the prompt goes on where that call ended.
        Null where that is not known, or the prompt became shorter.
    """
    ordered = calls.drop_nulls("request_id").sort(*CONVERSATION, "start_us", "rid")
    ordered = ordered.with_columns(server=pl.coalesce("prefill_server", "server"))

    def before(name: str) -> pl.Expr:
        return pl.col(name).shift(1).over(CONVERSATION)

    left = before("prompt_tokens") + before("completion_tokens").fill_null(0)
    goes_on = pl.col("prompt_tokens") >= before("prompt_tokens")
    return ordered.with_columns(
        number=pl.int_range(pl.len(), dtype=pl.Int64).over(CONVERSATION),
        moved=pl.col("server") != before("server"),
        expected_tokens=pl.when(goes_on).then(pl.min_horizontal("prompt_tokens", left)),
    )


def affinity(followed: pl.DataFrame) -> dict[str, Any]:
    """Return whether conversations stay at their servers, and what their caches had of later calls.

    Args:
        followed: Rows of `followed_calls`.

    Returns:
        conversations: of more than one call; later_calls: their calls after the first, whose server and that
        of the call before are known; stayed: how many of these had the same server; stayed_share;
        cached_share: of all prompts; cached_share_stayed, cached_share_moved: of the prompts of such calls;
        read_again_tokens: tokens of later calls that a server had read or written, and a server read again.
        None where the log does not tell.
    """
    later = followed.filter(pl.col("number") > 0)
    known = later.drop_nulls("moved")
    stayed = known.filter(~pl.col("moved"))
    return {
        "conversations": later.select(CONVERSATION).n_unique() if len(later) else 0,
        "later_calls": len(known),
        "stayed": len(stayed),
        "stayed_share": len(stayed) / len(known) if len(known) else None,
        "cached_share": cached_share(followed),
        "cached_share_stayed": cached_share(stayed),
        "cached_share_moved": cached_share(known.filter("moved")),
        "read_again_tokens": _read_again(later),
    }


def cached_share(calls: pl.DataFrame) -> float | None:
    """Return the share of the prompts' tokens that was in the cache; None if no call tells both."""
    known = calls.filter(CACHE_KNOWN)
    return int(known["cached_tokens"].sum()) / int(known["prompt_tokens"].sum()) if len(known) else None


def _read_again(later: pl.DataFrame) -> int | None:
    known = later.filter(CACHE_KNOWN).drop_nulls("expected_tokens")
    missing = (known["expected_tokens"] - known["cached_tokens"]).clip(lower_bound=0)
    return int(missing.sum()) if len(known) else None


def cached_by_turn(calls: pl.DataFrame, by_step: bool = False) -> pl.DataFrame:
    """Return the tokens of prompts by turn, and how many of them were in the cache.

    Args:
        calls: Rows of `server_calls`.
        by_step: Return a row for each step and turn.

    Returns:
        step, validate (by step only), turn; prompt_tokens, cached_tokens: sums over the calls that tell both;
        calls of which no process logged the cache have no row. Callers that log no turn: their calls are
        numbered in order.
    """
    key = ["step", "validate", "turn"] if by_step else ["turn"]
    numbered = followed_calls(calls).with_columns(
        turn=pl.when(pl.col("turn").is_null().all().over(CONVERSATION)).then("number").otherwise("turn")
    )
    known = numbered.filter(CACHE_KNOWN).drop_nulls("turn")
    return known.group_by(key).agg(pl.col("prompt_tokens", "cached_tokens").sum()).sort(key)


def with_cached(turns: pl.DataFrame, cached: pl.DataFrame) -> pl.DataFrame:
    """Add to rows of `turn_table` the columns of `cached_by_turn`, and the share of prompts that was cached.

    They are null for a turn of which `cached_by_turn` has no row.
    """
    key = [name for name in ("step", "validate", "turn") if name in cached.columns]
    share = pl.when(pl.col("prompt_tokens") > 0).then(pl.col("cached_tokens") / pl.col("prompt_tokens"))
    return turns.join(cached, on=key, how="left", maintain_order="left").with_columns(cached_share=share)
