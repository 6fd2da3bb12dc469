"""Read the name of the Ray actor that this process runs, if any."""

import re
import sys
from typing import Any, Final

from sglang_instrument.recording.safety.guard import reraise_if_programs_own

# A number between underscores or at the end: not digits in the random part of a name.
_NUMBER: Final = re.compile(r"_(\d+)(?=_|$)")


def may_run() -> bool:
    """Return whether this process may run an actor: whether Ray is imported."""
    return "ray" in sys.modules


def number_in_name() -> int | None:
    """Return the number in the actor's name: 3 of `agent_loop_worker_3_ab12cd34`; None without one."""
    name = actor_name()
    match = _NUMBER.search(name) if name else None
    return int(match[1]) if match else None


def kind_in_name(role: str) -> str | None:
    """Return the kind in a server's name: "reward" of `sglang_server_reward_0_0`; None without one."""
    name = actor_name()
    match = re.search(rf"(?:^|_){role}_([a-z]+)_\d", name) if name else None
    return match[1] if match else None


def actor_name() -> str | None:
    """Return the name of the actor that runs in this process; None where none runs, or it has no name."""
    ray: Any = sys.modules.get("ray")  # not imported here: if Ray is not imported, there is no actor
    try:
        if ray is None or not ray.is_initialized():
            return None
        context = ray.get_runtime_context()
        return context.get_actor_name() if context.get_actor_id() else None
    except BaseException:  # Ray may be starting or shutting down
        reraise_if_programs_own()
        return None
