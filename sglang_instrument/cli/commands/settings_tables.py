"""Show the settings of a run in a line, and those that differ between two runs as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from sglang_instrument.analysis.tables.column import Column
from sglang_instrument.cli.columns import NOTHING
from sglang_instrument.cli.tables import print_line, print_table

if TYPE_CHECKING:
    from sglang_instrument.analysis.settings.differences import Difference
    from sglang_instrument.analysis.settings.recorded import Setting, Value

DIFFERENCES: Final = (
    Column("processes", "the roles of the processes that have the setting", gives_way=1),
    Column("setting", "what holds it, and its name in there"),
    Column("A", "its value in A; several where the processes differ; - where A has no such setting"),
    Column("B", "the same of B"),
)
_MOST: Final = 20  # on one screen


def settings_words(settings: Sequence[Setting]) -> str:
    """Return the settings that matter most for speed in one line; "" if none was recorded."""
    from sglang_instrument.analysis.settings.main_settings import main_settings

    return ", ".join(f"{name} {_words(values)}" for name, values in main_settings(settings).items())


def print_differences(differences: Sequence[Difference], are_recorded: bool) -> None:
    """Print the settings that differ between two runs; say so if none does, or none was recorded."""
    if not are_recorded:
        print_line("settings: not recorded in both runs")
    elif not differences:
        print_line("settings: the same in both runs, as far as they were recorded")
    else:
        rows = [
            (
                ", ".join(difference.roles),
                f"{difference.source} {difference.name}",
                *map(_words, difference[3:]),
            )
            for difference in differences[:_MOST]
        ]
        print_table(DIFFERENCES, rows, title="settings that differ")
        if len(differences) > _MOST:
            print_line(f"{len(differences) - _MOST:,} more settings differ; --json has all")


def json_of(differences: Sequence[Difference]) -> list[dict[str, Any]]:
    """Return the settings that differ, for `--json`."""
    return [difference._asdict() for difference in differences]


def _words(values: Sequence[Value]) -> str:
    return " | ".join(_word(value) for value in values) or NOTHING


def _word(value: Value) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
