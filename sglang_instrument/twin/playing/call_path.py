"""What lies between a caller and its server, as long as in the record, with the twin's own part of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from sglang_instrument.twin.agendas.planned import AgendaTurn

_SERVED: Final = "e2e_latency"  # seconds, as SGLang's reply tells them


class CallPath:
    """Measures what the twin's calls take outside of the servers, and says what is missing to the record.

    A trainer may call its servers through Ray and a load balancer: between two turns of a request, that takes
    time in which the server works on others.
    """

    def __init__(self) -> None:
        self._calls, self._sec = 0, 0.0

    def count(self, took_sec: float, replies: Iterable[Mapping[str, Any]]) -> None:
        """Count a call of the twin.

        Args:
            took_sec: Seconds from when it was sent to its replies.
            replies: They tell how long the server took.
        """
        served = [reply["meta_info"].get(_SERVED) for reply in replies]
        known = [sec for sec in served if isinstance(sec, (int, float)) and 0 <= sec <= took_sec]
        if known:
            self._calls, self._sec = self._calls + 1, self._sec + took_sec - max(known)

    def missing_sec(self, turn: AgendaTurn) -> tuple[float, float]:
        """Return the seconds to wait before a call and after it; 0 until the twin's own path is known."""
        recorded = turn.sent_sec + turn.returned_sec
        if not self._calls or not recorded:
            return 0.0, 0.0
        missing = max(0.0, recorded - self._sec / self._calls)
        before = missing * turn.sent_sec / recorded
        return before, missing - before
