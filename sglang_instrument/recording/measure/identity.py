"""Know who works: the role, number and tensor-parallel rank of this process, and the agent in a block."""

import os
from collections.abc import Mapping
from typing import Any, Final

from sglang_instrument import launchers
from sglang_instrument.recording.measure import ray_actor
from sglang_instrument.recording.measure.values import Identifier, identifier, integer
from sglang_instrument.schema import ENGINE_ROLES as ENGINE_ROLES

#: The role of a process for which no role is set or learned.
DEFAULT_ROLE: Final = "worker"
#: A server gives its number and kind to its children here: a scheduler does not know its replica.
SERVER: Final = "SGLANG_INSTRUMENT_SERVER"

_said: str = DEFAULT_ROLE  # set by install(role=...)
_learned: str = DEFAULT_ROLE  # from the trainer's own objects; stays true after uninstall() and install()
_is_of_parent = False  # in a forked child: what was learned is its parent's, until it learns its own
_worker: int | None = None
_tp: int | None = None
_kind: str | None = None  # of servers with their own numbering: those of a reward model, of a teacher
_tellers: Final[set[object]] = set()  # plans whose `process` fields were all read


def use_role(role: str) -> None:
    """Use the role of `install(role=...)`; the default role leaves the choice to `learn`."""
    global _said
    _said = role
    _hand_on_number()


def learn(role: Any = None, worker: Any = None, tp: Any = None, teller: object = None) -> None:
    """Learn the identity of this process from the trainer's own objects; `install(role=...)` wins.

    Without `worker`, the number in the name of this process's Ray actor is used: trainers name their actors
    `agent_loop_worker_3`. `tp` is the tensor-parallel rank within one worker. `teller` is the plan with these
    fields, if all of them could be read.
    """
    global _learned, _is_of_parent, _worker, _tp, _kind
    if (_learned == DEFAULT_ROLE or _is_of_parent) and (known := word(role)):
        _learned, _is_of_parent = known, False
    if _learned == "server" and _kind is None:
        _kind = ray_actor.kind_in_name(_learned)
    if worker is None and not _inherited_rank().isdigit():
        worker = ray_actor.number_in_name()
    if worker is not None:
        _worker = integer(worker)
    if tp is not None:
        _tp = integer(tp)
    has_number = _worker is not None or _inherited_rank().isdigit() or not ray_actor.may_run()
    if teller is not None and has_number:  # else the Ray actor may get its name, with its number, later
        _tellers.add(teller)
    _hand_on_number()


def knows_all_of(teller: object) -> bool:
    """Return whether this plan's `process` fields need not be read again."""
    return teller in _tellers


def ask_again() -> None:
    """Read all plans' `process` fields again, as in a forked child."""
    _tellers.clear()


def begin_child() -> None:
    """Keep the parent's identity in a forked child until it learns its own, as an engine's scheduler does."""
    global _is_of_parent
    _is_of_parent = True
    ask_again()


def process_role() -> str:
    """Return the role of records without a bound role."""
    return _learned if _said == DEFAULT_ROLE else _said


def process_worker() -> int:
    """Return this process's rank: the trainer's number for it, its server's, the launcher's, or 0."""
    if _worker is not None:
        return _worker
    rank = _inherited_rank()
    return int(rank) if rank.isdigit() else 0


def file_name(role: str, worker: int) -> str:
    """Return the name of a role's and rank's files: `worker_3`, `scheduler_0_tp0`, `server_0_reward`."""
    kind = (_kind or _inherited()[1]) if role in ENGINE_ROLES else ""
    part = f"_tp{_tp}" if _tp is not None and role == process_role() else ""
    return f"{role}_{worker}{kind and '_' + kind}{part}"


def forget() -> None:
    """Forget the identity of this process, as at its start."""
    global _said, _learned, _is_of_parent, _worker, _tp, _kind
    _said, _learned, _is_of_parent = DEFAULT_ROLE, DEFAULT_ROLE, False
    _worker, _tp, _kind = None, None, None
    ask_again()


def word(value: Any) -> str | None:
    """Return a role if it can be part of a file's name, else None."""
    if not issubclass(type(value), str):  # not isinstance(), which reads the value's __class__
        return None
    role = str.__str__(value)
    return role if role.isidentifier() and role.isascii() else None


def _inherited_rank() -> str:
    number = _inherited()[0]
    if number or ray_actor.may_run():  # Slurm numbers the nodes on which Ray runs, not Ray's workers
        return number or os.environ.get("RANK", "")
    rank = launchers.rank_of(os.environ)
    return "" if rank is None else str(rank)


def _inherited() -> tuple[str, str]:
    """Return the number and the kind of the server that started this process; "" without one."""
    number, _, kind = os.environ.get(SERVER, "").partition("_")
    return number, word(kind) or ""


def _hand_on_number() -> None:
    if process_role() == "server" and _worker is not None:
        os.environ[SERVER] = f"{_worker}_{_kind}" if _kind else str(_worker)


def new_agent(
    before: Any, changes: Mapping[str, Any], request_id: Identifier | None
) -> tuple[Identifier | None, Identifier | None]:
    """Return the agent that a block binds, and the request that its requests are for.

    An agent whose request begins inside another request works for that one, if nothing else is said.

    Args:
        before: The `Context` that is bound around the block.
        changes: What the block binds.
        request_id: The id that is bound in it.
    """
    agent, parent = changes.get("agent"), changes.get("parent_request")
    if parent is not None:
        parent = identifier(parent)
    elif agent is not None and before.request_id is not None and request_id != before.request_id:
        parent = before.request_id
    else:
        parent = before.parent_request
    return before.agent if agent is None else identifier(agent), parent


def with_agent(
    ids: dict[str, Any] | None,
    request_id: Identifier | None,
    agent: Identifier | None,
    parent_request: Identifier | None,
) -> dict[str, Any] | None:
    """Add an agent and a parent to the ids that records show; no request is its own parent."""
    extra = {} if ids is None else ids
    if agent is not None:
        extra["agent"] = agent
    if parent_request is not None and parent_request != request_id:
        extra["parent_request"] = parent_request
    return extra or None
