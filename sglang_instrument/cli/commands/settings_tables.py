"""Show the settings of a run in a line, and those that differ between two runs as a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from sglang_instrument.analysis.tables.changes.compare import DIFFERING_SETTINGS
from sglang_instrument.cli.columns import NOTHING
from sglang_instrument.cli.tables import print_line, print_rows

if TYPE_CHECKING:
    from sglang_instrument.analysis.settings.differences import Difference
    from sglang_instrument.analysis.settings.recorded import Setting, Value
    from sglang_instrument.analysis.tables.column import Cell
    from sglang_instrument.analysis.tables.table import Row

_MOST: Final = 20  # on one screen


def settings_words(settings: Sequence[Setting]) -> str:
    """Return the settings that matter most for speed in one line; "" if none was recorded."""
    from sglang_instrument.analysis.settings.main_settings import main_settings

    return ", ".join(f"{name} {setting_words(values)}" for name, values in main_settings(settings).items())


def print_differences(differences: Sequence[Difference], are_recorded: bool) -> None:
    """Print the settings that differ between two runs; say so if none does, or none was recorded."""
    if not are_recorded:
        print_line("settings: not recorded in both runs")
    elif not differences:
        print_line("settings: the same in both runs, as far as they were recorded")
    else:
        rows = [difference._asdict() for difference in differences[:_MOST]]
        print_rows(DIFFERING_SETTINGS, rows, title="settings that differ", cells=_CELLS)
        if len(differences) > _MOST:
            print_line(f"{len(differences) - _MOST:,} more settings differ; --json has all")


def json_of(differences: Sequence[Difference]) -> list[dict[str, Any]]:
    """Return the settings that differ, for `--json`."""
    return DIFFERING_SETTINGS.in_json(difference._asdict() for difference in differences)


def setting_words(values: Sequence[Value]) -> str:
    """Return the values of a setting in words; - if it has none."""
    return " | ".join(_word(value) for value in values) or NOTHING


def _word(value: Value) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


_CELLS: Final[Mapping[str, Callable[[Row], Cell]]] = {
    "roles": lambda row: ", ".join(row["roles"]),
    "setting": lambda row: f"{row['source']} {row['name']}",
    "a": lambda row: setting_words(row["a"]),
    "b": lambda row: setting_words(row["b"]),
}
