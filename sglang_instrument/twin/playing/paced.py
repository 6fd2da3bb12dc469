"""Play steps when a line on stdin asks for one: so that the players of several settings take turns.

`python -m sglang_instrument.twin.playing.paced ORDER`: the order is JSON, with what `opened_player` takes. A
line on stdin is a pass and the place of a step, "2 0". The line on stdout that answers it is JSON; it has
`error` if the step failed.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sglang_instrument import install, installed, uninstall
from sglang_instrument.errors import InstrumentError
from sglang_instrument.twin.agendas.files import read_agenda
from sglang_instrument.twin.agendas.planned import AgendaStep
from sglang_instrument.twin.playing.player import opened_player

_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of linux/prctl.h


def main(order: dict[str, Any]) -> int:
    """Play what stdin asks for, until it ends."""
    # If the twin dies, what is open is aborted: SIGINT raises KeyboardInterrupt.
    ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGINT, 0, 0, 0)
    try:
        asyncio.run(_play(order))
    except InstrumentError as error:
        _answer({"error": str(error)})
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        uninstall()
    return 0


async def _play(order: dict[str, Any]) -> None:
    async with opened_player(
        order["urls"], order["route"], order["vocabulary"], order["timeout_sec"]
    ) as player:
        _answer({"ready": True})
        steps: Iterator[AgendaStep] = iter(())
        now = -1
        while line := await asyncio.to_thread(sys.stdin.readline):
            number, place = map(int, line.split())
            if number != now:
                uninstall()
                now, steps = number, iter(read_agenda(Path(order["agenda"])))
                if number:  # pass 0 is the warm-up, which is not recorded
                    run_id = f"{order['run_id']}-{number}"
                    install(
                        experiment=order["name"],
                        log_dir=order["log_dir"],
                        run_id=run_id,
                        trainers=("none",),
                    )
            assert installed() or not number  # noqa: S101
            planned = next(steps)
            played = await player.play(planned)
            _answer(
                {
                    "step": played.step,
                    "place": place,
                    "duration_sec": played.duration_sec,
                    "calls": played.calls,
                    "retries": played.retries,
                    "late_p99_sec": played.late_p99_sec,
                }
            )


def _answer(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
