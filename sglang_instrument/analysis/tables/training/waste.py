"""Tokens that were generated and thrown away, by reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from sglang_instrument.analysis.tables.column import Column
from sglang_instrument.analysis.tables.table import Table

if TYPE_CHECKING:
    import polars as pl

    from sglang_instrument.analysis.run.opening import Run


def _make(run: Run) -> pl.DataFrame:
    from sglang_instrument.analysis.answers.asynchronous import waste
    from sglang_instrument.analysis.answers.asynchronous.fates import sample_fates

    fates = waste.with_engine_tokens(run, sample_fates(run.digest))
    return waste.waste_table(fates, run.digest)


def _share_of(name: str) -> Callable[[Mapping[str, Any]], float | None]:
    def share(row: Mapping[str, Any]) -> float | None:
        whole, part = row["generated_tokens"], row[name]
        return part / whole if whole and part is not None else None

    return share


def _tokens(
    fate: str, meaning: str, gives_way: int = 0, formerly: str = "", former_title: str = ""
) -> Column:
    """Return a column of tokens, of which a terminal shows the share in all generated tokens."""
    name = f"{fate}_tokens"
    return Column(
        name,
        f"those {meaning}; a terminal shows their share in `generated_tokens`",
        "count",
        gives_way,
        title=fate.replace("_", " "),
        cell=_share_of(name),
        shown_as="share",
        formerly=formerly or fate,
        former_title=former_title,
    )


WASTE: Final = Table(
    name="waste",
    row="a step of the rollout; used, waiting, unknown and the reasons add up to generated_tokens",
    commands=("waste",),
    make=_make,
    columns=(
        Column("step", "the step of the rollout", "id"),
        Column("requests", "how many", "count", terminal=False),
        Column(
            "generated_tokens",
            "of all replies, each counted once",
            "count",
            title="generated",
            formerly="generated",
        ),
        _tokens("used", "that the trainer took"),
        _tokens("waiting", "that no step has taken yet", 5),
        _tokens("aborted", "of requests that were aborted or failed"),
        _tokens("filtered", "of groups that a filter rejected"),
        _tokens("over_sampled", "of samples that were done, and that later steps passed over"),
        _tokens("stale", "of samples that were too old"),
        _tokens("truncated", "of samples that were thrown away because they hit their limit", 2),
        _tokens("other", "of samples that were thrown away for another reason", 1),
        _tokens("unknown", "of which the trainer logs nothing", 3),
        _tokens(
            "equal_rewards",
            "in groups that were used and whose rewards are all equal",
            4,
            formerly="without_variance",
            former_title="no variance",
        ),
        Column("wasted_tokens", "of all reasons", "count", terminal=False, formerly="wasted"),
        Column(
            "uncounted_requests",
            "requests whose tokens are not logged",
            "count",
            terminal=False,
            formerly="uncounted",
        ),
        Column(
            "used_at_limit_tokens",
            "of used_tokens, those of replies that ended at their limit",
            "count",
            terminal=False,
            formerly="cut",
        ),
    ),
)
