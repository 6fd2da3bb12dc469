"""Turn what `advise` proposes for the engine into settings that a twin can measure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sglang_instrument.twin.trials.settings import TwinSetting, settings_of

_MOST: Final = 3
#: By lever, the word of `--set`: an option of SGLang's server, or one of the twin's own.
_WORDS: Final = {
    "running limit": "max_running_requests",
    "schedule policy": "schedule_policy",
    "servers": "servers",
}
_VALUE: Final = re.compile(r"[\w.-]+\Z")
_MORE_TOKENS: Final = 2  # times as many
_MORE_MEMORY: Final = 0.05
_MOST_MEMORY: Final = 0.95


@dataclass(frozen=True)
class Measurable:
    """A lever that a twin can measure.

    Attributes:
        place: Of the lever among those asked about.
        setting: What is tried.
    """

    place: int
    setting: TwinSetting

    @property
    def value(self) -> int | float | str:
        """The value that is tried: a number where it is one."""
        text = self.setting.name.partition("=")[2]
        for number in (int, float):
            try:
                return number(text)
            except ValueError:
                continue
        return text


def measurable(levers: Sequence[Mapping[str, Any]]) -> list[Measurable]:
    """Return the first three levers of the engine, in their order.

    Args:
        levers: Rows of the table `levers`. Those of the trainer are left out, and those whose effect depends
            on the text. Where the proposal is in words, a value that follows it is tried.
    """
    asked: dict[str, int] = {}
    for place, row in enumerate(levers):
        for text in _asked(row):
            asked.setdefault(text, place)
    settings = settings_of(list(asked)[:_MOST])
    return [Measurable(asked[setting.name], setting) for setting in settings]


def _asked(row: Mapping[str, Any]) -> Iterator[str]:
    """Yield what `--set` would ask of a lever."""
    word, value = _WORDS.get(row["lever"]), row["proposed"]
    if word is not None and value is not None and _VALUE.match(str(value)):
        yield f"{word}={value}"
    elif row["lever"] == "key-value cache":
        yield from _more_room(row["now"])
    elif row["lever"] == "router policy":
        yield "router=cache_aware"


def _more_room(now: Any) -> Iterator[str]:
    """Yield a larger cache: SGLang's `max_total_tokens` is an int, a share of the memory a float."""
    if isinstance(now, int) and not isinstance(now, bool):
        yield f"max_total_tokens={_MORE_TOKENS * now}"
    elif isinstance(now, float) and now < _MOST_MEMORY:
        yield f"mem_fraction_static={min(_MOST_MEMORY, round(now + _MORE_MEMORY, 3))}"
