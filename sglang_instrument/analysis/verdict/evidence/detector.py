"""Say what a detector is: a function of the evidence, with the causes that it names and their advice.

A file in `detectors/` that holds a detector is all that the verdict needs: the package finds it by itself.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import polars as pl

from sglang_instrument.analysis.verdict.evidence.finding import Finding
from sglang_instrument.analysis.verdict.evidence.run_evidence import Evidence


class Precedence(IntEnum):
    """Which detectors explain the time of a call first: those of special causes before those of general ones.

    A detector sees the calls without the time that detectors of an earlier level explained. Detectors of one
    level see the same calls.
    """

    NO_CALLS = 0  # looks at no times of calls, and explains none
    RECORDED = 10  # a record names what held the calls up
    STANDSTILL = 20  # all calls of an engine waited at the same time
    SERVER = 30  # the server that a call went to, and what was in its cache
    ENGINE_DRIFT = 40  # a number of the engine that changes from step to step
    GROWTH = 50  # calls that take longer from step to step
    MOST_CALLS = 60  # most calls of a step, or of a worker in it
    SOME_CALLS = 70  # some calls of a worker


@dataclass(frozen=True)
class NamedCause:
    """A cause that findings name.

    Attributes:
        name: The word in `Finding.cause`.
        scopes: What its findings concern, for the documentation: "worker, step".
        named_if: When it is named, for the documentation, in Markdown with links.
        advice: What to look at next. `{step}`, `{worker}` become options, `{request}` the id.
        advice_of_step: The advice where a finding concerns all workers of a step; "" if it is the same.
        not_planted: Why `sglang_instrument.testing` cannot plant it; "" if it can.
    """

    name: str
    scopes: str
    named_if: str
    advice: str
    advice_of_step: str = ""
    not_planted: str = ""


class Explained(NamedTuple):
    """A finding with the time of calls that it explains: the columns `row` and `excess_sec` of `calls`."""

    finding: Finding
    calls: pl.DataFrame


def steps_of(answers: Iterable[Explained]) -> set[int]:
    """Return the steps that some findings name."""
    return {answer.finding.step for answer in answers if answer.finding.step is not None}


Findings = Iterator[Finding | Explained]
Find = Callable[[Evidence], Findings]
Join = Callable[[Sequence[Finding], Evidence], list[Finding]]


@dataclass(frozen=True)
class Detector:
    """What finds causes. It never changes the evidence.

    Attributes:
        find: Yields findings; with the time of calls that they explain, if they explain any.
        causes: The causes that it names.
        precedence: When it looks.
        needs_steps: Whether it has nothing to look at in a run without steps.
    """

    find: Find
    causes: tuple[NamedCause, ...]
    precedence: Precedence
    needs_steps: bool

    @property
    def name(self) -> str:
        """The module in which it stands."""
        return self.find.__module__

    def __call__(self, evidence: Evidence) -> Findings:
        """Yield the findings."""
        return self.find(evidence)


@dataclass(frozen=True)
class Joiner:
    """What puts one finding in the place of several that have one cause.

    Attributes:
        join: Takes all findings, and returns those that then stand.
        causes: The cause that it names.
    """

    join: Join
    causes: tuple[NamedCause, ...]

    @property
    def name(self) -> str:
        """The module in which it stands."""
        return self.join.__module__


def detector(
    *causes: NamedCause, precedence: Precedence = Precedence.NO_CALLS, needs_steps: bool = True
) -> Callable[[Find], Detector]:
    """Make a function that yields findings a detector of these causes; the other arguments are its fields."""
    return lambda find: Detector(find, causes, precedence, needs_steps)


def joiner(cause: NamedCause) -> Callable[[Join], Joiner]:
    """Make a function from findings to findings the joiner of this cause."""
    return lambda join: Joiner(join, (cause,))
