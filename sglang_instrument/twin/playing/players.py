"""Keep a player in a process of its own, and ask it for one step after the other."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from sglang_instrument.errors import InstrumentError

_ENDING_SEC: Final = 15.0


@dataclass
class PacedPlayer:
    """A player that waits for each step.

    Attributes:
        process: Its process.
        folder: Of the run that it records.
    """

    process: subprocess.Popen[str]
    folder: Path

    def play(self, number: int, place: int) -> dict[str, Any]:
        """Play the next step of a pass; return what was counted.

        Raises:
            InstrumentError: It cannot go on; the message says why.
        """
        assert self.process.stdin is not None  # noqa: S101
        try:
            self.process.stdin.write(f"{number} {place}\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # its last words say why
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None  # noqa: S101
        line = self.process.stdout.readline()
        answer = json.loads(line) if line.startswith("{") else {"error": f"the player of {self.folder} ended"}
        if "error" in answer:
            raise InstrumentError(f"{answer['error']}; {self.folder} has what was played before")
        return dict(answer)


@contextmanager
def opened_players(
    urls: Sequence[str],
    agenda: Path,
    folder: Path,
    run_id: str,
    route: str | None,
    vocabulary: int | None,
    timeout_sec: float,
) -> Iterator[PacedPlayer]:
    """Yield a player whose servers answer; let it abort what is open, if this block ends by an error.

    Raises:
        InstrumentError: A server does not answer.
    """
    order = {
        "urls": list(urls),
        "agenda": str(agenda),
        "name": folder.name,
        "log_dir": str(folder.parent),
        "run_id": run_id,
        "route": route,
        "vocabulary": vocabulary,
        "timeout_sec": timeout_sec,
    }
    environment = {
        name: text for name, text in os.environ.items() if not name.startswith("SGLANG_INSTRUMENT")
    }
    with (agenda.parent / "players.txt").open("ab") as errors:
        process = _started(order, environment, errors)
    player = PacedPlayer(process, folder)
    try:
        player._answer()
        yield player
        assert process.stdin is not None  # noqa: S101
        process.stdin.close()
        process.wait(_ENDING_SEC)
    except BaseException:
        process.send_signal(signal.SIGINT)
        raise
    finally:
        try:
            if process.stdin is not None and not process.stdin.closed:
                process.stdin.close()
        except BrokenPipeError:
            pass
        try:
            process.wait(_ENDING_SEC)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _started(order: dict[str, Any], environment: dict[str, str], errors: BinaryIO) -> subprocess.Popen[str]:
    return subprocess.Popen(  # noqa: S603 - this Python
        [sys.executable, "-m", "sglang_instrument.twin.playing.paced", json.dumps(order)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        env=environment,
        start_new_session=True,  # Ctrl-C is for the twin, which then ends its players
    )
