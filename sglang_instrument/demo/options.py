"""The options of a demo run, and the order that the parent sends to each worker."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DemoOptions:
    """The options of a demo run.

    `requests` counts the requests per worker and step; `max_tokens` limits each reply; with `install` the
    workers call this package's `install()`; `validate` adds a validation after the last step. The run fails
    if no report comes for `give_up_sec`, or, until all engines are ready, for `start_sec`.
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
    """The arguments of one worker process; it writes its reports to `report_fd`."""

    run: DemoOptions
    rank: int
    model: str
    scratch: str
    report_fd: int
