"""Write the lines of an SGLang server, and those of a simulated engine whose truth is known."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

DAY = "2026-01-05"
STEP_SEC = 0.02  # a decode step of the simulated engine
PAUSE_SEC = 120.0


def clock(sec: float) -> str:
    """Return the time of day of a second after 08:00."""
    whole = int(sec)
    return f"{8 + whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def begin(sec: float, ranks: str = " TP0") -> str:
    """Return how the engine itself begins a line."""
    return f"[{DAY} {clock(sec)}{ranks}] "


def decode(running: int = 4, rate: float = 160.0, more: str = "") -> str:
    """Return a line of decode without its begin."""
    return (
        f"Decode batch, #running-req: {running}, #token: 9120, token usage: 0.31, {more}cuda graph: True, "
        f"gen throughput (token/s): {rate:.2f}, #queue-req: 0"
    )


def prefill(running: int = 0, new: int = 1) -> str:
    """Return a line of prefill without its begin."""
    return (
        f"Prefill batch, #new-seq: {new}, #new-token: 640, #cached-token: 64, token usage: 0.10, "
        f"#running-req: {running}, #queue-req: 0, #pending-token: 0, cuda graph: False, "
        "input throughput (token/s): 320.00"
    )


def steady(count: int = 12, prefix: str = "[2026-01-05 {clock} TP0] ", **values: float) -> list[str]:
    """Return lines of a server that decodes 4 requests with 160 tokens a second, a line each second."""
    return [prefix.format(clock=clock(sec)) + decode(**values) for sec in range(count)]  # type: ignore[arg-type]


@dataclass(frozen=True)
class Work:
    """What the simulated engine did between two pauses."""

    tokens: int
    sec: float
    longest: int


def simulated(interval: int, with_prefill: bool, seed: int = 3) -> tuple[list[str], list[Work]]:
    """Return the lines of an engine that works three times, with lognormal lengths, and what it did."""
    lines, works = [], []
    drawn = random.Random(seed)
    now = reported = 0.0
    count = generated = 0
    for _ in range(3):
        lengths = sorted(int(drawn.lognormvariate(8.5, 0.7)) for _ in range(64))
        begun = now
        if with_prefill:
            lines.append(begin(now) + prefill(new=64))
        for running in _running(lengths):
            now += STEP_SEC
            count, generated = count + 1, generated + running
            if count % interval == 0:
                lines.append(begin(now) + decode(running, generated / (now - reported)))
                reported, generated = now, 0
        works.append(Work(sum(lengths), now - begun, lengths[-1]))
        now += PAUSE_SEC
    return lines, works


def _running(lengths: list[int]) -> Iterator[int]:
    """Yield how many requests run, for each decode step."""
    done = 0
    for number, length in enumerate(lengths):
        for _ in range(length - done):
            yield len(lengths) - number
        done = length
