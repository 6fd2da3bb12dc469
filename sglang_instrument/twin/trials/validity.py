"""Hold a twin under the recorded setting against the record: is it one, and which part differs?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import geometric_mean
from typing import Any, Final

from sglang_instrument.twin.trials.figures import StepFigures

_NEAR: Final = 0.10  # of a time
_ALIKE: Final = 0.05  # of a mean call, or of the prompts' tokens


@dataclass(frozen=True)
class TwinPart:
    """A part of the twin beside the record, over the steps that both have.

    Attributes:
        part: What is compared.
        unit: Of both means.
        record, twin: Means over the steps.
        ratio, low, high: Geometric mean, least and most of twin over record by step; None where one is 0.
        is_near: Whether they are alike: a time within 10 %, what the cache had within 5 % of the prompts'
            tokens, the queue within 5 % of a call, counts exactly, or within 10 % where workers abort.
    """

    part: str
    unit: str
    record: float
    twin: float
    ratio: float | None
    low: float | None
    high: float | None
    is_near: bool

    def row(self) -> dict[str, Any]:
        """Return the row of the table `twin_parts`."""
        return dict(vars(self))


@dataclass(frozen=True)
class Validity:
    """Whether a twin is one.

    Attributes:
        parts: All that both sides tell.
        steps: How many steps both have.
    """

    parts: tuple[TwinPart, ...]
    steps: int

    @property
    def differing(self) -> list[TwinPart]:
        """The parts that differ."""
        return [part for part in self.parts if not part.is_near]

    @property
    def sentence(self) -> str:
        """In words: how near the steps are, and which parts differ."""
        if not self.steps:
            return "the twin has no step that the record has: nothing can be held against it"
        rollout = self.parts[0]
        assert rollout.ratio is not None  # noqa: S101 - a step that takes no time has no requests
        off = max(1, round(100 * (max(rollout.ratio, 1 / rollout.ratio) - 1)))
        of_steps = f"over {self.steps} step{'s' * (self.steps != 1)}"
        words = (
            f"the twin's rollout takes {rollout.ratio:.2f} of the record's "
            f"({rollout.low:.2f} to {rollout.high:.2f} by step, {of_steps})"
        )
        if self.differing:
            return f"{words}; these parts differ: {', '.join(part.part for part in self.differing)}"
        return f"{words}: it is within {off} %, and no part differs"


def validity_of(
    record: Mapping[int, StepFigures], twin: Mapping[int, StepFigures], is_exact: bool = True
) -> Validity:
    """Compare the steps that a record and its twin have in common.

    Args:
        record: By step, what was measured.
        twin: The same of the twin.
        is_exact: Whether calls and tokens are known before; where workers abort what is left, time decides.
    """
    pairs = [(record[step], twin[step]) for step in sorted(record) if step in twin]
    if not pairs:
        return Validity((), 0)
    call_sec = sum(before.call_sec for before, _ in pairs) / len(pairs)
    parts = [
        _timed(pairs, "rollout", "s", lambda figures: figures.rollout_sec),
        _timed(pairs, "p50 of requests", "s", lambda figures: figures.p50_sec),
        _timed(pairs, "p99 of requests", "s", lambda figures: figures.p99_sec),
        _timed(pairs, "tokens per second", "1/s", lambda figures: figures.tokens_per_sec),
        _counted(pairs, "calls", lambda figures: figures.calls, is_exact),
        _counted(pairs, "prompt tokens", lambda figures: figures.prompt_tokens, is_exact),
        _counted(pairs, "generated tokens", lambda figures: figures.generated_tokens, is_exact),
        _within(pairs, "cached share", "", lambda figures: figures.cached_share, _ALIKE),
        _within(pairs, "queue of a call", "s", lambda figures: figures.queue_sec, _ALIKE * call_sec),
    ]
    return Validity(tuple(part for part in parts if part is not None), len(pairs))


Pairs = Sequence[tuple[StepFigures, StepFigures]]
_Figure = Callable[[StepFigures], float | None]


def _timed(pairs: Pairs, part: str, unit: str, figure: _Figure) -> TwinPart:
    ratio, low, high = _ratios(pairs, figure)
    is_near = ratio is not None and abs(log(ratio)) <= log(1 + _NEAR)
    record, twin = _means(pairs, figure)
    return TwinPart(part, unit, record, twin, ratio, low, high, is_near)


def _counted(pairs: Pairs, part: str, figure: _Figure, is_exact: bool) -> TwinPart:
    ratio, low, high = _ratios(pairs, figure)
    record, twin = _means(pairs, figure)
    is_near = abs(record - twin) <= _NEAR * record
    if is_exact:
        is_near = all(figure(before) == figure(after) for before, after in pairs)
    return TwinPart(part, "", record, twin, ratio, low, high, is_near)


def _within(pairs: Pairs, part: str, unit: str, figure: _Figure, room: float) -> TwinPart | None:
    known = [pair for pair in pairs if figure(pair[0]) is not None and figure(pair[1]) is not None]
    if not known:
        return None
    record, twin = _means(known, figure)
    ratio, low, high = _ratios(known, figure)
    return TwinPart(part, unit, record, twin, ratio, low, high, abs(record - twin) <= room)


def _means(pairs: Pairs, figure: _Figure) -> tuple[float, float]:
    sides = [[figure(side) or 0.0 for side in both] for both in zip(*pairs, strict=True)]
    before, after = (sum(side) / len(side) for side in sides)
    return before, after


def _ratios(pairs: Pairs, figure: _Figure) -> tuple[float | None, float | None, float | None]:
    """Return the geometric mean, the least and the most of twin over record; None where one is 0."""
    values = [(figure(before), figure(after)) for before, after in pairs]
    ratios = [after / before for before, after in values if before and after]
    if len(ratios) < len(values):
        return None, None, None
    return geometric_mean(ratios), min(ratios), max(ratios)


def interval_of(ratios: Sequence[float], confidence: float = 0.95) -> tuple[float, float, float]:
    """Return the geometric mean of ratios and its interval by Student's t; of one, as wide as can be."""
    from scipy.stats import t

    logs = [log(ratio) for ratio in ratios]
    mean = sum(logs) / len(logs)
    if len(logs) < 2:
        return exp(mean), 0.0, float("inf")
    spread = (sum((value - mean) ** 2 for value in logs) / (len(logs) - 1) / len(logs)) ** 0.5
    room = float(t.ppf((1 + confidence) / 2, len(logs) - 1)) * spread
    return exp(mean), exp(mean - room), exp(mean + room)
