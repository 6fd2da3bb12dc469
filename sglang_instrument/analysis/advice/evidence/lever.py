"""Say what a lever is: a setting, what another value of it would save, and what that costs."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from sglang_instrument.analysis.advice.evidence.change import Change
from sglang_instrument.analysis.advice.evidence.grounds import Grounds
from sglang_instrument.analysis.settings.recorded import Value

Kind = Literal["simulated", "named"]


@dataclass(frozen=True)
class ProposedChange:
    """Another value of a setting.

    Attributes:
        setting: Its name in the trainer or the engine.
        now: Its value; None if the log does not hold it, or if it is not set.
        proposed: The value that is proposed; of a named lever, words may stand for it.
        costs: What the change costs.
        rests_on: What the proposal rests on.
        command: Shows the evidence; LOGS stands for the run.
        change: What is simulated; None for a named lever.
        per_step: Of a simulated lever, the seconds that each recorded step saves.
        costs_sec: Of a named lever, what the present setting cost a step, in seconds.
        not_recorded: What would record the present value; "" if it is recorded.
        model_error: Standard deviation of what the replay is off, as a share of the saving, where this change
            goes farther than the lever's own says.
    """

    setting: str
    now: Value
    proposed: Value
    costs: str
    rests_on: str
    command: str
    change: Change | None = None
    per_step: list[float] = field(default_factory=list)
    costs_sec: float | None = None
    not_recorded: str = ""
    model_error: float = 0.0


Propose = Callable[[Grounds], Iterator[ProposedChange]]


@dataclass(frozen=True)
class Lever:
    """A setting that a run may gain from.

    Attributes:
        name: A short name, such as "response cap".
        kind: Whether its savings are simulated, or it only says what the present setting cost.
        propose: Yields proposals: none where there is nothing to gain.
        mends: The causes of the verdict's findings that it answers.
        model_error: Standard deviation of what its replay is off, as a share of the saving, as
            `benchmarks/advice.py` measured it on its open worlds.
        drops_samples: Whether it throws away what is slow, in place of making it faster: it stands behind
            levers that save a quarter as much without that.
    """

    name: str
    kind: Kind
    propose: Propose
    mends: frozenset[str] = frozenset()
    model_error: float = 0.0
    drops_samples: bool = False

    @property
    def module(self) -> str:
        """The module in which it stands."""
        return self.propose.__module__


def lever(
    name: str,
    kind: Kind = "simulated",
    *mends: str,
    model_error: float = 0.0,
    drops_samples: bool = False,
) -> Callable[[Propose], Lever]:
    """Make a function that yields proposals a lever; the arguments are its fields."""
    return lambda propose: Lever(name, kind, propose, frozenset(mends), model_error, drops_samples)
