"""Know where calls of the engine are, by what its scheduler logs: in the queue, in prefill, in decode."""

from collections import Counter
from typing import Any, Final

from sglang_instrument.analysis.reading.records.fields import Fields
from sglang_instrument.schema import SCHEDULER_PREEMPT

#: Where a call is after one of these records; "" when it has ended.
MOVES: Final = {
    "scheduler_receive": "queue",
    "scheduler_admit": "prefill",
    "scheduler_first_tokens": "decode",
    "scheduler_retract": "queue",
    "scheduler_prebuilt": "decode",
    SCHEDULER_PREEMPT: "queue",
    "scheduler_finish": "",
    "engine_request": "",
    "engine_stream": "",
}
#: Events that take requests out of a running batch.
RETRACT: Final = "scheduler_retract"
ABORT: Final = "scheduler_abort"
TAKING_BACK: Final = frozenset({RETRACT, SCHEDULER_PREEMPT, ABORT})
_MOST_CALLS: Final = 100_000  # that are open, and of those that ended: the oldest are forgotten


class CallIds(Fields, gc=False):
    """The engine's ids of the calls that a record is about."""

    rid: Any = None
    rids: Any = None

    def each(self) -> list[Any]:
        """Return the ids; anything may be among them."""
        return self.rids if isinstance(self.rids, list) else [self.rid]


class EngineCalls:
    """The calls that are open.

    Each process has a file of its own, and files are read in turn, so that the end of a call may be known
    before its begin.
    """

    def __init__(self) -> None:
        self._where: dict[str, str] = {}
        self._ended: dict[str, None] = {}

    def note(self, event: str, ids: CallIds) -> None:
        """Take in a record of one of the events in `MOVES`."""
        where = MOVES[event]
        for rid in ids.each():
            if not isinstance(rid, str) or rid in self._ended:
                continue
            if where:
                _keep(self._where, rid, where)
            else:
                self._where.pop(rid, None)
                _keep(self._ended, rid, None)

    def counts(self) -> Counter[str]:
        """Return how many calls are where."""
        return Counter(self._where.values())


def _keep(known: dict[str, Any], rid: str, value: str | None) -> None:
    known[rid] = value
    if len(known) > _MOST_CALLS:
        del known[next(iter(known))]
