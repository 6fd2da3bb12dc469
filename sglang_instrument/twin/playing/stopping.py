"""Stop a worker's requests once it has enough groups, where its rollout starts more than it needs."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence

from sglang_instrument.twin.agendas.planned import AgendaRequest


class Enough:
    """Counts the complete groups of a worker in a step.

    Args:
        requests: Of the worker.
        groups: How many groups it needs; None: all of them.
        abort: Aborts the calls of these ids.

    Attributes:
        calls: The ids of its open calls.
    """

    def __init__(
        self,
        requests: Sequence[AgendaRequest],
        groups: int | None,
        abort: Callable[[Iterable[str]], Awaitable[None]],
    ) -> None:
        self.calls: set[str] = set()
        self._left = Counter(request.group for request in requests)
        self._missing, self._abort = groups, abort
        self._reached = asyncio.Event()

    @property
    def is_reached(self) -> bool:
        """Whether the worker has enough, and what is left is aborted."""
        return self._reached.is_set()

    async def count(self, request: AgendaRequest) -> None:
        """Count a request that is complete; if the worker has enough with it, abort its open calls."""
        self._left[request.group] -= 1
        if self._missing is None or self._left[request.group] or self.is_reached:
            return
        self._missing -= 1
        if not self._missing:
            self._reached.set()
            await self._abort(sorted(self.calls))

    async def until(self, due: float) -> None:
        """Wait until this time of `time.perf_counter`, or until the worker has enough."""
        left = due - time.perf_counter()
        if left <= 0:
            return
        if self._missing is None:
            await asyncio.sleep(left)
            return
        try:
            await asyncio.wait_for(self._reached.wait(), left)
        except asyncio.TimeoutError:
            pass
