"""Read which samples a trainer took or threw away, versions of weights, and the labels of groups."""

from typing import Any, Final

import msgspec

from sglang_instrument.analysis.reading.records.fields import SampleFields
from sglang_instrument.schema import SAMPLES_CONSUMED, SAMPLES_DROPPED

#: Events that say what became of samples: ours, and what slime's tables record of groups.
SAMPLE_EVENTS: Final = frozenset({SAMPLES_CONSUMED, SAMPLES_DROPPED, "group_filter", "groups_collect"})
_LARGEST: Final = 2**62
_FEW_DIGITS: Final = 18


class Facts(msgspec.Struct, omit_defaults=True):
    """What one record says of samples. `groups` are of their prompts; `count` is that of the samples."""

    samples: list[str] = []
    groups: list[str] = []
    weight_version: int | None = None
    max_staleness: int | None = None
    reason: str | None = None
    tokens: int | None = None
    count: int | None = None
    is_kept: bool | None = msgspec.field(name="kept", default=None)


def version_of(value: Any) -> int | None:
    """Return a version of weights as a number: an integer, or its text; None for any other label."""
    if value is None:
        return None
    if type(value) is int:
        return value if -_LARGEST <= value <= _LARGEST else None
    if type(value) is str and value.isascii() and value.isdigit() and len(value) <= _FEW_DIGITS:
        return int(value)
    return None


def label_of(*values: Any) -> str | None:
    """Return the first of some values that is an id, as text: a number or a string."""
    for value in values:
        if type(value) is str:
            return value if value.isascii() else value.encode("utf-8", "replace").decode()
        if type(value) is int:
            return str(value)
    return None


def facts_of(fields: SampleFields) -> str:
    """Return what a record of SAMPLE_EVENTS says, as JSON of `Facts`; fields of odd types count as absent."""
    groups = _labels(fields.groups) or _labels(fields.group_index)
    facts = Facts(
        samples=_labels(fields.samples),
        groups=groups or _labels([fields.group, fields.group_index]),
        weight_version=version_of(fields.weight_version),
        max_staleness=version_of(fields.max_staleness),
        reason=label_of(fields.reason),
        tokens=version_of(fields.tokens),
        count=version_of(fields.count),
        is_kept=fields.is_kept if type(fields.is_kept) is bool else None,
    )
    return msgspec.json.encode(facts).decode()


def _labels(values: Any) -> list[str]:
    """Return the ids in a list, each once and in order; [] if it is no list."""
    if not isinstance(values, list):
        return []
    return list(dict.fromkeys(label for label in map(label_of, values) if label is not None))
