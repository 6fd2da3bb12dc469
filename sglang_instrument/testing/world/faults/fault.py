"""Say what a fault is: what it does to a world, how large it is, and which finding about it is right."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from sglang_instrument.testing.world.rollout.shape import OWN, WorldShape
from sglang_instrument.testing.world.serving.calls import ServerShape

if TYPE_CHECKING:
    from sglang_instrument.testing.world.stage import Stage

#: When a fault is there: in one step, in the first, in all, from one on to the end.
Span = Literal["one", "first", "all", "from"]
Place = Literal["server", "worker", "tool", "all"]
Sizes = tuple[float, float, float]
AtStep = Callable[["WorldFault", "Stage"], None]
AtStart = Callable[["WorldFault", ServerShape], ServerShape]


class Truth(NamedTuple):
    """Which finding is right for a fault.

    Attributes:
        parts: What it may say that is slow; each word is a part of the world, not one of any program.
        server, worker: Whom it has to name; with an engine of its own, a worker's server and the worker are
            the same. None where it may name none.
        steps: The step that it has to name, if it is one; else it may name none, or one of these.
        step_is_named: Whether it has to name the step.
        tool: The tool that it may name.
        may_name: A worker that it may name and need not: the one whose request is concerned; -1 is any.
    """

    parts: frozenset[str]
    server: int | None
    worker: int | None
    steps: frozenset[int]
    step_is_named: bool
    tool: str | None = None
    may_name: int | None = None


@dataclass(frozen=True)
class FaultKind:
    """A kind of fault.

    Attributes:
        parts: What a right finding may say that is slow.
        place: What it is of: a "server", a "worker", a "tool", or "all" alike.
        span: In which steps it is.
        families: The kinds of training in which it may be.
        sizes: Its size, small, medium and large.
        at_step: What it does when a step begins in which it is.
        at_start: What it does to the settings of its server.
        needs: What a world needs for it to matter, such as long prompts.
    """

    parts: frozenset[str]
    place: Place
    span: Span
    families: tuple[str, ...]
    sizes: Sizes
    at_step: AtStep | None = None
    at_start: AtStart | None = None
    needs: Callable[[WorldShape], WorldShape] = lambda shape: shape
    may_name: int | None = None


class WorldFault:
    """A fault in a world.

    Attributes:
        name: Of its kind.
        size: How large it is, in what its kind is measured.
        server, worker, tool: Where it is, as far as it is anywhere.
        steps: The steps in which it is.
        wall_sec: Usual seconds of the first of them.
    """

    def __init__(
        self, name: str, kind: FaultKind, size: float, shape: WorldShape, usual: dict[int, float]
    ) -> None:
        random = Random(f"{shape.seed}/fault/{name}")
        self.name, self.kind, self.size = name, kind, size
        self.has_own_engines = shape.family == OWN
        self.server = random.randrange(shape.servers) if kind.place == "server" else None
        self.worker = random.randrange(shape.workers) if kind.place == "worker" else None
        self.tool = random.choice(shape.work.tools).name if kind.place == "tool" else None
        numbers = sorted(usual)
        first = random.choice(numbers[2:-2])
        spans = {
            "one": [first],
            "first": numbers[:1],
            "all": numbers,
            "from": [number for number in numbers if number >= first],
        }
        self.steps = tuple(spans[kind.span])
        self.wall_sec = usual[self.steps[0]]

    @property
    def truth(self) -> Truth:
        """Which finding about it is right."""
        worker = self.server if self.has_own_engines and self.server is not None else self.worker
        return Truth(
            parts=self.kind.parts,
            server=self.server,
            worker=worker,
            steps=frozenset(self.steps),
            step_is_named=self.kind.span in ("one", "first"),
            tool=self.tool,
            may_name=self.kind.may_name,
        )

    def server_shape(self, number: int, shape: ServerShape) -> ServerShape:
        """Return the settings of a server with this fault."""
        if number != self.server or self.kind.at_start is None:
            return shape
        return self.kind.at_start(self, shape)

    def begin_step(self, stage: "Stage", step: int) -> None:
        """Do what the fault does in a step that begins."""
        if step in self.steps and self.kind.at_step is not None:
            self.kind.at_step(self, stage)


def parts(*words: str) -> frozenset[str]:
    """Return what a right finding may say is slow."""
    return frozenset(words)


def factor_on(name: str, key: Callable[["WorldFault"], Any]) -> AtStep:
    """Return what sets an entry of a knob, which is a dictionary, to the fault's size."""

    def at_step(fault: "WorldFault", stage: "Stage") -> None:
        getattr(stage.knobs, name)[key(fault)] = fault.size

    return at_step


def seconds_on(name: str, key: Callable[["WorldFault"], Any]) -> AtStep:
    """Return what sets an entry of a knob to so many times the usual seconds of the step."""

    def at_step(fault: "WorldFault", stage: "Stage") -> None:
        getattr(stage.knobs, name)[key(fault)] = fault.size * fault.wall_sec

    return at_step


def knob(name: str, times_wall: bool = False) -> AtStep:
    """Return what sets a knob to the fault's size, or to so many times the usual seconds of the step."""

    def at_step(fault: "WorldFault", stage: "Stage") -> None:
        setattr(stage.knobs, name, fault.size * (fault.wall_sec if times_wall else 1.0))

    return at_step
