"""Define a problem: something that a person should know now."""

from dataclasses import dataclass
from typing import Literal

ProblemKind = Literal["hang", "death", "loss", "follower"]


@dataclass(frozen=True)
class Problem:
    """Something that a person should know now; each is listed once, while it lasts.

    Attributes:
        kind: "hang", "death", "loss" (records), or "follower" (what the follower cannot read).
        since_us: When it began, Unix epoch in microseconds.
        worker, step: Where; None where it concerns no single one.
        sentence: What to tell.
        role: The role of the worker.
    """

    kind: ProblemKind
    since_us: int
    worker: int | None
    step: int | None
    sentence: str
    role: str = "worker"
