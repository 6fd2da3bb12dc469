"""Name the shapes of clean runs: what a run may look like without anything being wrong."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from sglang_instrument.testing.causes.base import Cause
from sglang_instrument.testing.causes.cold_start import ColdStart
from sglang_instrument.testing.causes.endings import TornFile
from sglang_instrument.testing.run_shape import RunShape
from sglang_instrument.testing.simulation.trainer import Trainer
from sglang_instrument.testing.usual_run import ENGINE, WORKLOAD, usual_shape


@dataclass(frozen=True)
class CleanRun:
    """A run that nobody should be accused of.

    Attributes:
        shape: What it is drawn from.
        causes: What makes it look unusual, such as a first step that warms up.
        words: Causes that may be named, because they are true and nobody's fault.
        is_whole: Whether its files are as they were written.
    """

    shape: RunShape
    causes: Sequence[Cause] = ()
    words: frozenset[str] = frozenset({"long-replies"})
    is_whole: bool = True


def _of_any_size(seed: int) -> CleanRun:
    random = Random(f"size/{seed}")
    workers, requests = random.choice([1, 2, 3, 4, 8, 16]), random.choice([8, 16, 32, 64])
    shape = usual_shape(seed, steps=random.randint(3, 14))
    return CleanRun(replace(shape, workers=workers, requests=requests))


def _warm_up(seed: int) -> CleanRun:
    random = Random(f"warm-up/{seed}")
    cause = ColdStart(random.uniform(1.1, 1.6), random.uniform(0.5, 10.0))
    return CleanRun(usual_shape(seed), [cause], frozenset({"long-replies", "cold-start"}))


def _growing_lengths(seed: int) -> CleanRun:
    shape = usual_shape(seed)
    return CleanRun(replace(shape, workload=replace(WORKLOAD, growth=0.04)))


def _timeouts(seed: int) -> CleanRun:
    shape = usual_shape(seed)
    return CleanRun(replace(shape, workload=replace(WORKLOAD, timeout_share=0.03, timeout_sec=10.0)))


def _capped(seed: int) -> CleanRun:
    return CleanRun(replace(usual_shape(seed), workload=replace(WORKLOAD, most_tokens=256)))


def _overlap(seed: int) -> CleanRun:
    trainer = Trainer(sec=30.0, jitter=0.05, recorded=True, overlaps=True)
    return CleanRun(replace(usual_shape(seed), trainer=trainer))


def _recorded_trainer(seed: int) -> CleanRun:
    trainer = Trainer(sec=30.0, jitter=0.05, recorded=True)
    return CleanRun(replace(usual_shape(seed), trainer=trainer))


def _skewed_clocks(seed: int) -> CleanRun:
    return CleanRun(replace(usual_shape(seed), clock_skew={1: 2.5, 2: -40.0, 3: 0.02}))


def _engine_logs(seed: int) -> CleanRun:
    return CleanRun(replace(usual_shape(seed, steps=5), engine_clocks={0: 0.0, 1: 5.0, 2: 0.0, 3: -1.0}))


def _shared_engine(seed: int) -> CleanRun:
    # It runs all requests at once: in a queue, a worker that starts milliseconds later waits for the others.
    engine = replace(ENGINE, shared=True, load_sec=1e-4, most_running=256)
    return CleanRun(replace(usual_shape(seed), engine=engine))


def _torn(seed: int) -> CleanRun:
    """Return a run in which one closing line is torn, often in the last step; all others closed theirs."""
    random = Random(f"torn/{seed}")
    torn = TornFile(random.choice([2, 3, 3]), random.randrange(4), random.choice([40, 200]))
    return CleanRun(usual_shape(seed, steps=3), [torn], is_whole=False)


#: Each shape by its name: a function of a seed.
CLEAN_SHAPES: Final[dict[str, Callable[[int], CleanRun]]] = {
    "usual": lambda seed: CleanRun(usual_shape(seed)),
    "of any size": _of_any_size,
    "warm-up": _warm_up,
    "growing lengths": _growing_lengths,
    "time-outs of tools": _timeouts,
    "capped replies": _capped,
    "overlap": _overlap,
    "recorded trainer": _recorded_trainer,
    "validation": lambda seed: CleanRun(replace(usual_shape(seed), validate_every=3)),
    "skewed clocks": _skewed_clocks,
    "engine logs": _engine_logs,
    "shared engine": _shared_engine,
    "reference's format": lambda seed: CleanRun(replace(usual_shape(seed), reference_format=True)),
    "torn closing line": _torn,
    "one worker": lambda seed: CleanRun(replace(usual_shape(seed), workers=1)),
    "three steps": lambda seed: CleanRun(usual_shape(seed, steps=3)),
    "64 workers": lambda seed: CleanRun(replace(usual_shape(seed, steps=4), workers=64, requests=8)),
}
