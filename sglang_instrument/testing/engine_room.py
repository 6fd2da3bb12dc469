"""Write what an engine's own processes would log about the calls of a synthetic run."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from sglang_instrument.schema import LOG_OPENED
from sglang_instrument.testing.timeline import NEVER, Happened
from sglang_instrument.testing.written import LogFile

_ROLES: Final = ("server", "scheduler", "detokenizer")
_ON_THE_WAY: Final = 0.02  # share of a call's time from its caller to the server, and again back
_QUEUE: Final = 0.1  # share of the time in the scheduler
_PREFILL: Final = 0.1


class EngineLogs:
    """The logs of one worker's engine: a server, a scheduler and a detokenizer, which know no step."""

    def __init__(self, folder: Path, rank: int, skew: float, run_id: str) -> None:
        """Begin the files; the clock of all three processes is `skew` seconds ahead."""
        self.rank = rank
        self._file = LogFile(None, rank, skew, run_id)
        home = folder / "engine"
        home.mkdir(parents=True, exist_ok=True)
        opened = self._file.control(LOG_OPENED, 0.0, self._file.opening(0.0))
        self._paths = {role: home / f"{role}_{rank}.jsonl" for role in _ROLES}
        for path in self._paths.values():
            path.write_bytes(msgspec.json.Encoder().encode_lines([opened]))

    def write(self, happened: Iterable[Happened]) -> None:
        """Give each engine call a `rid`, and write what the engine's processes did for it."""
        records: dict[str, list[Happened]] = {role: [] for role in _ROLES}
        for one in happened:
            if one.event == "turn_engine_call" and one.extra is not None and one.end < NEVER:
                one.extra["rid"] = f"{one.extra['request_id']}-{one.extra['turn']}"
                for role, record in _served(one, one.extra):
                    records[role].append(record)
        for role, path in self._paths.items():
            ordered = sorted(records[role], key=lambda record: record.end)
            with path.open("ab") as stream:
                stream.write(msgspec.json.Encoder().encode_lines([self._file.line(one) for one in ordered]))


def _served(call: Happened, fields: dict[str, Any]) -> Iterator[tuple[str, Happened]]:
    """Yield what each process did for a call, on the true clock."""
    way = (call.end - call.start) * _ON_THE_WAY
    arrived, done = call.start + 2 * way, call.end - 2 * way
    admitted = arrived + (done - arrived) * _QUEUE
    first = admitted + (done - arrived) * _PREFILL
    rid, tokens = fields["rid"], fields["generated_tokens"]
    whole = {"rid": rid, "completion_tokens": tokens}
    yield "server", Happened("engine_request", call.start + way, call.end - way, whole, 0)
    yield "scheduler", Happened("scheduler_receive", arrived, arrived, {"rid": rid}, 0)
    yield "scheduler", Happened("scheduler_admit", admitted, admitted, {"rids": [rid]}, 0)
    yield "scheduler", Happened("scheduler_first_tokens", first, first, {"rids": [rid]}, 0)
    yield "detokenizer", Happened("engine_detokenize", done, done, {"rids": [rid]}, 0)
