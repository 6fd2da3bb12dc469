"""Say what a run of the demo is: what the parent asks for, and what each worker is told."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DemoOptions:
    """A run of the demo.

    `requests` are those of one worker in one step; `max_tokens` caps each reply; `install` says whether the
    workers call this package's `install()`; `validate` adds a validation after the last step.
    The run gives up when nothing has happened for `give_up_sec`, and when no engine is up after `start_sec`.
    """

    steps: int = 3
    workers: int = 2
    requests: int = 16
    seed: int = 0
    inject: tuple[str, ...] = ()
    max_tokens: int = 512
    validate: bool = False
    install: bool = True
    give_up_sec: float = 60.0
    start_sec: float = 600.0


@dataclass(frozen=True)
class WorkerOrder:
    """What one worker process is told; `report_fd` is where it says how far it is."""

    run: DemoOptions
    rank: int
    model: str
    scratch: str
    report_fd: int
