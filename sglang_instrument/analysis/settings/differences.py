"""Name the settings that differ between two runs."""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from sglang_instrument.analysis.settings.recorded import Setting, Value

#: Last parts of the names of settings that differ from run to run without being set.
_BY_CHANCE: Final = re.compile(r"(^|\.)((\w+_)?ports?|EXPERIMENT|RUN_ID|LOG_DIR|dist_init_addr)(\.\d+)?$")


class Difference(NamedTuple):
    """A setting that is not the same in two runs.

    Attributes:
        roles: The roles of the processes that have it.
        source: As in `Setting`.
        name: As in `Setting`.
        a: The values in run A, each once; empty where it has none.
        b: Those in run B.
    """

    roles: list[str]
    source: str
    name: str
    a: list[Value]
    b: list[Value]


def differing_settings(a: Sequence[Setting], b: Sequence[Setting]) -> list[Difference]:
    """Return the settings that differ between the processes of one role, in the order of A, then of B.

    A role or a source that only one run recorded is left out: that tells what was recorded, not what was set.
    So are ports, and the names of the runs.
    """
    values_a, values_b = _by_name(a), _by_name(b)
    shared = {key[:2] for key in values_a} & {key[:2] for key in values_b}
    differences: dict[str, Difference] = {}
    for key in dict.fromkeys([*values_a, *values_b]):
        role, source, name = key
        values = values_a.get(key, []), values_b.get(key, [])
        if key[:2] not in shared or values[0] == values[1] or _BY_CHANCE.search(name):
            continue
        same = repr((source, name, values))  # with types: True equals 1
        differences.setdefault(same, Difference([], source, name, *values)).roles.append(role or "")
    return list(differences.values())


def _by_name(settings: Sequence[Setting]) -> dict[tuple[str | None, str, str], list[Value]]:
    """Return the values of each setting, each once, in a fixed order."""
    values: dict[tuple[str | None, str, str], set[tuple[str, Value]]] = {}
    for setting in settings:
        key = (setting.role, setting.source, setting.name)
        values.setdefault(key, set()).add((type(setting.value).__name__, setting.value))
    return {key: [value for _, value in sorted(kinds, key=repr)] for key, kinds in values.items()}
