"""Write what an engine's own processes would log about the calls of a synthetic run."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from sglang_instrument.schema import LOG_OPENED
from sglang_instrument.testing.simulation.log_files import LogFile
from sglang_instrument.testing.simulation.timeline import Happened, ServedCall

_ROLES: Final = ("server", "scheduler", "detokenizer")
_ON_THE_WAY: Final = 0.01  # share of a call's time from its caller to the server, and again to the scheduler


class EngineLogs:
    """The logs of one engine: a server, a scheduler and a detokenizer, which know no step."""

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

    def write(self, calls: Iterable[ServedCall]) -> None:
        """Write what the engine's processes did for some calls."""
        records: dict[str, list[Happened]] = {role: [] for role in _ROLES}
        for call in calls:
            for role, record in _served(call):
                records[role].append(record)
        for role, path in self._paths.items():
            ordered = sorted(records[role], key=lambda record: record.end)
            with path.open("ab") as stream:
                stream.write(
                    msgspec.json.Encoder().encode_lines([self._file.line(record) for record in ordered])
                )


def name_calls(happened: Iterable[Happened]) -> None:
    """Give each recorded engine call the `rid` under which the engine knows it."""
    for record in happened:
        if record.event == "turn_engine_call" and record.extra is not None:
            record.extra["rid"] = _rid(record.extra["request_id"], record.extra["turn"])


def _rid(request_id: str, turn: int) -> str:
    return f"{request_id}-{turn}"


def _served(call: ServedCall) -> Iterator[tuple[str, Happened]]:
    """Yield what each process did for a call, on the true clock.

    The engine's own times are moved together a little, so that the ways to it and back have room in the call.
    """
    start, end = call.start, call.served.end
    way = (end - start) * _ON_THE_WAY

    def in_scheduler(time_sec: float) -> float:
        return start + 2 * way + (time_sec - start) * (1 - 4 * _ON_THE_WAY)

    rid = _rid(call.request_id, call.turn)
    received, done = in_scheduler(start), in_scheduler(end)
    admitted, first = in_scheduler(call.served.admitted), in_scheduler(call.served.first)
    whole = {"rid": rid, "completion_tokens": call.tokens, "cached_tokens": 0}
    prompt = {"rid": rid, "prompt_tokens": call.prompt_tokens}
    yield "server", Happened("engine_request", start + way, end - way, whole, 0)
    yield "scheduler", Happened("scheduler_receive", received, received, prompt, 0)
    yield "scheduler", Happened("scheduler_admit", admitted, admitted, {"rids": [rid]}, 0)
    yield "scheduler", Happened("scheduler_first_tokens", first, first, {"rids": [rid]}, 0)
    yield "detokenizer", Happened("engine_detokenize", done, done, {"rids": [rid]}, 0)
