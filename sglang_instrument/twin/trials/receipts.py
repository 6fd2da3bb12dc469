"""Turn what `advise` proposes for the engine into settings that a twin can measure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
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


def measurable(levers: Sequence[Mapping[str, Any]]) -> list[TwinSetting]:
    """Return the first three settings of the engine among levers, in their order.

    Args:
        levers: Rows of the table `levers`. Those of the trainer, and values in words, are left out.
    """
    return settings_of(list(_asked(levers))[:_MOST])


def _asked(levers: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for row in levers:
        word, value = _WORDS.get(row["lever"]), row["proposed"]
        if word is not None and value is not None and _VALUE.match(str(value)):
            yield f"{word}={value}"
