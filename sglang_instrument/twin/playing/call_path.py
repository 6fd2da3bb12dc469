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
        self._calls, self._sec, self._recorded_sec = 0, 0.0, 0.0

    def begin_step(self, turns: Iterable[AgendaTurn]) -> None:
        """Take the mean over the turns of a step that is played next."""
        paths = [turn.sent_sec + turn.returned_sec for turn in turns]
        self._recorded_sec = sum(paths) / max(1, len(paths))

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
        """Return the seconds to wait before a call and after it; 0 until the twin's own path is known.

        Each is so much of the recorded time that the mean over the step, with the twin's own path, is that of
        the record: what was missing call by call would add up where both scatter alike.
        """
        if not self._calls or not self._recorded_sec:
            return 0.0, 0.0
        share = max(0.0, 1.0 - self._sec / self._calls / self._recorded_sec)
        return share * turn.sent_sec, share * turn.returned_sec
