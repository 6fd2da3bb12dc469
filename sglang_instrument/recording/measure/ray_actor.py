"""Know which Ray actor this process runs, where it runs one."""

import re
import sys
from typing import Any, Final

from sglang_instrument.recording.safety.guard import let_through

# A number between underscores, or at the end: not the digits of the random part of a name.
_NUMBER: Final = re.compile(r"_(\d+)(?=_|$)")


def may_run() -> bool:
    """Return whether this process may run an actor: Ray is never imported here for that."""
    return "ray" in sys.modules


def number_in_name() -> int | None:
    """Return the 3 of an actor called `agent_loop_worker_3_ab12cd34`; None if there is no such thing."""
    name = actor_name()
    found = _NUMBER.search(name) if name else None
    return int(found[1]) if found else None


def kind_in_name(role: str) -> str | None:
    """Return the `reward` of a server called `sglang_server_reward_0_0`; None if there is no such word."""
    name = actor_name()
    found = re.search(rf"(?:^|_){role}_([a-z]+)_\d", name) if name else None
    return found[1] if found else None


def actor_name() -> str | None:
    """Return the name of the actor that runs in this process; None where none runs, or it has no name."""
    ray: Any = sys.modules.get("ray")  # never imported for this: without it there is no actor
    try:
        if ray is None or not ray.is_initialized():
            return None
        context = ray.get_runtime_context()
        return context.get_actor_name() if context.get_actor_id() else None
    except BaseException:  # Ray's own state, at a moment that it did not expect
        let_through()
        return None
