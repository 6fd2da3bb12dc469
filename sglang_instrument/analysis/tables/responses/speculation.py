"""How many tokens speculative decoding accepts, by step and by the length of a reply."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sglang_instrument.analysis.tables.column import Column
from sglang_instrument.analysis.tables.responses.lengths import from_to
from sglang_instrument.analysis.tables.shared import VALIDATE
from sglang_instrument.analysis.tables.table import Table

if TYPE_CHECKING:
    import polars as pl

    from sglang_instrument.analysis.run.opening import Run


def _by_step(run: Run) -> pl.DataFrame:
    from sglang_instrument.analysis.answers.lengths import speculation_table

    return speculation_table(run.digest)


_OF_REPLIES: Final = (
    Column("replies", "how many: a reply is an engine call of a turn", "count"),
    Column("tokens", "of these replies", "count"),
    Column("verifications", "passes of the model that checked drafted tokens", "count"),
    Column(
        "tokens_per_verification",
        "with the token that the model writes itself: 1 means that no drafted token was accepted",
        "number",
        formerly="accepted",
    ),
)
SPECULATION: Final = Table(
    name="speculation",
    row="a step with replies whose drafted tokens were verified",
    commands=("lengths",),
    option="--speculation",
    make=_by_step,
    columns=(Column("step", "its number", "id"), VALIDATE, *_OF_REPLIES),
)
SPECULATION_BY_LENGTH: Final = Table(
    name="speculation_by_length",
    row="a tenth of these replies by their length, the shortest first",
    commands=("lengths",),
    option="--speculation",
    columns=(
        Column("decile", "the tenth, from 1", "count", terminal=False),
        Column("length", "its shortest and its longest reply", cell=from_to, json=False, frame=False),
        Column("from_tokens", "tokens of its shortest reply", "count", terminal=False),
        Column("to_tokens", "tokens of its longest reply", "count", terminal=False),
        *_OF_REPLIES,
    ),
)
