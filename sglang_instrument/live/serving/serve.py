"""Follow a run and serve it until a signal ends this: `watch --listen`."""

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from sglang_instrument.live.children import yield_to_training
from sglang_instrument.live.follower import Follower
from sglang_instrument.live.serving.server import LiveServer, address_of
from sglang_instrument.live.state import Snapshot

_EXPOSED: Final = (
    "it is open to everybody who can reach that address, without a password: names of runs, folders, workers "
    "and requests, events, and the places in the code where something hangs; no prompts, no answers"
)


def serve(
    logs: Path, run_id: str | None, address: str, say: Callable[[str], None], with_stacks: bool = False
) -> Snapshot:
    """Serve a run until Ctrl-C or SIGTERM; return what is known then.

    Args:
        logs: The run's folder, or a folder of runs.
        run_id: Which run of the folder; None: the newest.
        address: As `address_of` reads it.
        say: Called at the start with lines that say where it listens, and which machines can read it.
        with_stacks: As of `Follower`.

    Raises:
        LogError: Nothing can listen there.
    """
    follower = Follower(logs, run_id, with_stacks=with_stacks, with_runs=True)
    server = LiveServer(follower, *address_of(address))
    signal.signal(signal.SIGTERM, _interrupt)
    say(f"{server.url} shows the run; Prometheus reads {server.url}metrics; Ctrl-C ends")
    say("only this machine can read it" if server.is_local else f"{server.host}: {_EXPOSED}")
    sys.stdout.flush()
    yield_to_training()
    follower.start()
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()
        follower.stop()
    return follower.snapshot()


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt
