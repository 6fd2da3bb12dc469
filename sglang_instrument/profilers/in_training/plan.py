"""Say which steps, workers and slow requests of a run are profiled, as the settings ask."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from sglang_instrument.errors import ConfigError
from sglang_instrument.profilers.options import DEFAULT_STEPS_IN_A_RUN, ProfileOptions, numbers, read_options

_WHEN: Final = re.compile(r"\s*(\w+)\s*>\s*([0-9.]+)\s*(s|sec|min)?\s*")


@dataclass(frozen=True)
class ProfilePlan:
    """What a run wants profiled.

    Attributes:
        steps: Training steps.
        workers: Numbers of the rollout workers with engines of their own, and of the servers; None is all.
        options: What to record.
        phase: Phase or event of the spans whose age is watched, such as request.
        longer_than_sec: The age beyond which such a span is profiled; 0 watches nothing.
    """

    steps: frozenset[int]
    workers: frozenset[int] | None
    options: ProfileOptions
    phase: str = ""
    longer_than_sec: float = 0.0


def read_plan(steps: str, workers: str, options: str, when: str, output_dir: str) -> ProfilePlan | None:
    """Return the plan of these settings; None if they ask for nothing.

    Raises:
        ConfigError: One of them cannot be read.
    """
    if not steps.strip() and not when.strip():
        return None
    base = ProfileOptions(num_steps=DEFAULT_STEPS_IN_A_RUN, output_dir=output_dir)
    phase, longer_than_sec = _when(when) if when.strip() else ("", 0.0)
    every = workers.strip() in ("", "all")
    return ProfilePlan(
        _numbers("profile_steps", steps),
        None if every else _numbers("profile_workers", workers),
        read_options(options, base),
        phase,
        longer_than_sec,
    )


def _numbers(setting: str, text: str) -> frozenset[int]:
    try:
        return numbers(text)
    except ValueError as error:
        raise ConfigError(f"{setting}: {error}") from None


def _when(text: str) -> tuple[str, float]:
    match = _WHEN.fullmatch(text)
    if match is None or float(match[2]) <= 0:
        raise ConfigError(f"profile_when: {text!r} must be like request>60s")
    return match[1], float(match[2]) * (60 if match[3] == "min" else 1)
