"""Propose the regions of a class: step, request, turns, calls of the engine, of tools and of rewards."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from sglang_instrument.patching.places.anchors import FunctionDef
from sglang_instrument.patching.suggest.find_anchors import anchor_at, anchor_block
from sglang_instrument.patching.suggest.kinds import Kind, kind_of_name
from sglang_instrument.patching.suggest.methods import CallSite, Methods, Spot, spot_of
from sglang_instrument.patching.suggest.paths import REQUESTS, STEPS, VALIDATES, parameters_of, path_to

REQUEST: Final = "async_rollout_request_complete"
STEP: Final = "total_step_duration"
ENGINE: Final = "turn_engine_call"
_EVENTS: Final[dict[Kind, str]] = {
    "tool": "tool_execution",
    "reward": "reward_calculation",
    "parsing": "turn_tool_parsing",
    "interaction": "interaction_response",
}
#: The event of a whole function that does such a thing.
_WHOLE: Final[dict[str, str]] = {
    "tool": "tool_call",
    "reward": "reward_calculation",
    "parsing": "turn_tool_parsing",
}
_NEXT_TURN: Final = f"size(before.{ENGINE})"


@dataclass
class Proposal:
    """One region: its event, its anchors, what it binds and records, and why it is proposed."""

    event: str
    why: str
    lines: tuple[int, int]
    anchors: dict[str, str] = field(default_factory=dict)
    flags: dict[str, bool] = field(default_factory=dict)
    bind: dict[str, str] = field(default_factory=dict)
    enter: dict[str, str] = field(default_factory=dict)
    exit: dict[str, str] = field(default_factory=dict)


@dataclass
class Proposals:
    """The regions of each function, and what the source did not tell."""

    of: dict[str, list[Proposal]] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)
    step: str | None = None
    request: str | None = None

    def add(self, function: str, proposal: Proposal) -> None:
        """Add a region of a function, once."""
        mine = self.of.setdefault(function, [])
        if all((known.event, known.anchors) != (proposal.event, proposal.anchors) for known in mine):
            mine.append(proposal)


def propose(methods: Methods) -> Proposals:
    """Return the proposed regions; none if nothing in the class asks an engine."""
    proposals = Proposals()
    entries = methods.entries()
    if not entries:
        return proposals
    proposals.step, proposals.request = _step_and_request(methods, entries[0])
    if proposals.step is not None:
        _propose_step(methods, proposals.step, proposals)
    _propose_request(methods, proposals.request, proposals)
    reached = [name for name in methods.reached(proposals.request) if name != proposals.step]
    for name in reached:
        _propose_turns(methods, name, proposals)
    for name in reached:
        _propose_calls(methods, name, proposals)
    _sum_up(proposals)
    if proposals.step is not None:
        _propose_rewards(methods, proposals.step, reached, proposals)
    return proposals


def _step_and_request(methods: Methods, entry: str) -> tuple[str | None, str]:
    """Return the function of a step, if one starts many requests, and the function of a request."""
    on_the_way = [entry]
    for name in on_the_way:
        for call in methods.calls[name]:
            if call.callee in methods.reaching and call.callee != name:
                if call.is_many:
                    return name, str(call.callee)
                if call.callee not in on_the_way:
                    on_the_way.append(str(call.callee))
    return None, entry


def _propose_step(methods: Methods, name: str, proposals: Proposals) -> None:
    function = methods.functions[name]
    proposal = Proposal(STEP, "starts many requests", _lines_of(function))
    _bind_step(methods, name, proposal, proposals, counts=True)
    proposals.add(name, proposal)
    call = next(call for call in methods.calls[name] if call.callee in methods.reaching)
    spot = _waiting_for(function, call)
    anchors = spot and anchor_at(function, spot.statement, "gather")
    if spot is not None and anchors:
        proposals.add(name, Proposal("async_generate_duration", "waits for them", _span(spot), anchors))


def _waiting_for(function: FunctionDef, call: CallSite) -> Spot | None:
    """Return the statement that waits for many requests, if it is the one that starts them."""
    return None if call.is_nested else spot_of(function, call.call)


def _bind_step(
    methods: Methods, name: str, proposal: Proposal, proposals: Proposals, *, counts: bool
) -> None:
    function, others = methods.functions[name], methods.functions.values()
    step, validate = path_to(function, STEPS, others), path_to(function, VALIDATES, others)
    if step is not None:
        proposal.bind["step"] = step
    elif counts:
        proposal.flags["count_steps"] = True
        proposals.unknown.append(
            f"{methods.target(name)} shows no number of the step, so steps are counted from 1: "
            'bind = { step = "..." } instead of count_steps'
        )
    else:
        proposals.unknown.append(
            f"{methods.target(name)} shows no number of the step: "
            'bind = { step = "..." }, or wrap its caller: with sglang_instrument.step(n)'
        )
    if validate is not None:
        proposal.bind["validate"] = validate


def _propose_request(methods: Methods, name: str, proposals: Proposals) -> None:
    function = methods.functions[name]
    proposal = Proposal(
        REQUEST, "one conversation, from its first prompt to its last reply", _lines_of(function)
    )
    request = path_to(function, REQUESTS)
    if request is None:
        proposal.flags["new_request"] = True
        proposals.unknown.append(
            f"{methods.target(name)} is given no id of the request, so one is made up: "
            'bind = { request_id = "..." } instead of new_request'
        )
    else:
        proposal.bind["request_id"] = request
    if proposals.step is None:
        _bind_step(methods, name, proposal, proposals, counts=False)
    proposals.add(name, proposal)


def _propose_turns(methods: Methods, name: str, proposals: Proposals) -> None:
    """Propose a turn: a loop's body that asks the engine; in a loop over states, that state."""
    function = methods.functions[name]
    for call in methods.calls[name]:
        spot = spot_of(function, call.call) if methods.asks(call) and not call.is_nested else None
        loops = (
            [around for around in spot.around if isinstance(around, (ast.For, ast.AsyncFor, ast.While))]
            if spot
            else []
        )
        if spot is None or not loops or call.callee == name:
            continue
        loop = loops[-1]
        in_branch = isinstance(spot.around[-1], (ast.If, ast.Match)) if spot.around[-1] is not loop else False
        if in_branch and call.callee and len(spot.block) == 1:
            state = methods.functions[call.callee]
            why = f"the state of `{name}` that asks"
            proposals.add(call.callee, Proposal("turn_end", why, _lines_of(state), bind=_turn(None)))
            continue
        block = spot.block if in_branch else loop.body
        anchors = anchor_block(function, block, call.name)
        if anchors is not None:
            lines = (block[0].lineno, block[-1].end_lineno or 0)
            why = "the branch of the loop that asks" if in_branch else "the loop that asks"
            proposals.add(name, Proposal("turn_end", why, lines, anchors, bind=_turn(loop)))


def _propose_rewards(methods: Methods, name: str, reached: Sequence[str], proposals: Proposals) -> None:
    """Propose the rewards that the function of a step computes, once the requests are done."""
    for call in methods.calls[name]:
        if call.kind == "reward":
            _propose_call(methods.functions[name], name, call, proposals)
        elif call.callee and call.callee not in reached and kind_of_name(call.callee) == "reward":
            _propose_whole(methods.functions[call.callee], call.callee, "reward", proposals)


def _turn(loop: ast.stmt | None) -> dict[str, str]:
    """Return how a turn is numbered: by the variable of a loop over a range, else by the replies so far."""
    if isinstance(loop, ast.For) and isinstance(loop.target, ast.Name):
        over = loop.iter
        if isinstance(over, ast.Call) and getattr(over.func, "id", "") == "range":
            return {"turn": loop.target.id}
    return {"turn": _NEXT_TURN}


def _propose_calls(methods: Methods, name: str, proposals: Proposals) -> None:
    """Propose the function itself, if its name says what it does, and the calls in it."""
    function = methods.functions[name]
    whole = kind_of_name(name)
    if whole in _WHOLE and name != proposals.request:
        _propose_whole(function, name, str(whole), proposals)
    for call in methods.calls[name]:
        if call.kind == "engine":
            _propose_engine_call(methods, name, call, proposals)
        elif call.kind is not None and not (call.kind == whole == "reward"):
            _propose_call(function, name, call, proposals)


def _propose_whole(function: FunctionDef, name: str, kind: str, proposals: Proposals) -> None:
    proposal = Proposal(_WHOLE[kind], "its name", _lines_of(function))
    proposal.enter, proposal.exit = _fields_of_whole(kind, function)
    proposals.add(name, proposal)


def _fields_of_whole(kind: str, function: FunctionDef) -> tuple[dict[str, str], dict[str, str]]:
    """Return what to read where a function of a tool or a reward begins, and where it ends."""
    if kind == "reward":
        return {}, {"reward": "number(result)"}
    if kind == "parsing":
        return {}, {"parsed_tool_calls": "size(result)"}
    given = parameters_of(function)
    named: list[str] = [parameter for parameter in ("tool_name", "name") if parameter in given]
    named += [f"{parameter}.name" for parameter in ("tool_call", "call", "tool") if parameter in given]
    return ({"tool": " | ".join(named)} if named else {}), {}


def _propose_engine_call(methods: Methods, name: str, call: CallSite, proposals: Proposals) -> None:
    function = methods.functions[name]
    spot = None if call.is_nested else spot_of(function, call.call)
    anchors = {"call": call.name} if spot is None else anchor_at(function, spot.statement, call.name)
    if anchors is None:
        anchors = {"call": call.name}
    proposal = Proposal(ENGINE, f"calls `{call.name}`", _lines_of_call(call, spot), anchors)
    if "call" not in anchors and not _is_in_turn(proposals):
        proposal.bind = {"turn": _NEXT_TURN}
    reply = "result" if "call" in anchors or spot is None else _reply_of(spot)
    if reply is not None:
        proposal.exit = _fields_of_reply(reply)
    proposals.add(name, proposal)


def _is_in_turn(proposals: Proposals) -> bool:
    return any(proposal.event == "turn_end" for mine in proposals.of.values() for proposal in mine)


def _propose_call(function: FunctionDef, name: str, call: CallSite, proposals: Proposals) -> None:
    assert call.kind is not None  # noqa: S101 - the caller asked
    event = _EVENTS[call.kind]
    spot = None if call.is_nested else spot_of(function, call.call)
    anchors = {"call": call.name} if spot is None else anchor_at(function, spot.statement, call.name)
    if anchors is None:
        return
    proposal = Proposal(event, f"calls `{call.name}`", _lines_of_call(call, spot), anchors)
    if call.kind == "reward":
        reply = "result" if "call" in anchors or spot is None else _reply_of(spot)
        proposal.exit = {} if reply is None else {"reward": f"number({reply})"}
    proposals.add(name, proposal)


def _reply_of(spot: Spot) -> str | None:
    """Return the local variable that gets the reply."""
    statement = spot.statement
    if isinstance(statement, ast.Return):
        return "result"
    target: ast.AST | None = None
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
    elif isinstance(statement, ast.AnnAssign):
        target = statement.target
    if not isinstance(target, ast.Name):
        return None
    return f"local.{target.id}" if target.id in ("result", "inside") else target.id


def _fields_of_reply(reply: str) -> dict[str, str]:
    meta = f'{reply}["meta_info"]'
    return {
        "generated_tokens": f'{meta}["completion_tokens"] | size({reply}["output_ids"]) '
        f"| size({reply}.token_ids) | size({reply}.output_tokens) | {reply}.usage.completion_tokens",
        "finish_reason": f'{meta}["finish_reason"]["type"] | {reply}.stop_reason | {reply}.finish_reason '
        f"| {reply}.choices[0].finish_reason",
        "prompt_tokens": f'{meta}["prompt_tokens"] | {reply}.usage.prompt_tokens',
        "cached_tokens": f'{meta}["cached_tokens"]',
        "rid": f'{meta}["id"]',
    }


def _sum_up(proposals: Proposals) -> None:
    """Give the request and its turns the sums of what is inside them."""
    everything = list(_everything(proposals))
    events = {proposal.event for proposal in everything}
    known = {name for proposal in everything if proposal.event == ENGINE for name in proposal.exit}
    reward = any(
        proposal.event == "reward_calculation" and "reward" in proposal.exit for proposal in everything
    )
    for proposal in everything:
        if proposal.event == "turn_end":
            proposal.exit["engine_call_duration"] = f"total(inside.{ENGINE}[*].duration_sec)"
        if proposal.event != REQUEST or ENGINE not in events:
            continue
        proposal.exit["turns"] = f"size(inside.{ENGINE}[*].duration_sec)"
        if "finish_reason" in known:
            proposal.exit["finish_reason"] = f"inside.{ENGINE}[-1].finish_reason"
            proposal.exit["response_length"] = f"total(inside.{ENGINE}[*].generated_tokens)"
        proposal.exit["total_engine_time"] = f"total(inside.{ENGINE}[*].duration_sec)"
        proposal.exit["engine_time_pct"] = f"percent(inside.{ENGINE}[*].duration_sec)"
        if "tool_execution" in events:
            proposal.exit["total_tool_time"] = "total(inside.tool_execution[*].duration_sec)"
        if reward:
            proposal.exit["reward"] = "inside.reward_calculation[-1].reward"


def _everything(proposals: Proposals) -> Iterator[Proposal]:
    for mine in proposals.of.values():
        yield from mine


def _lines_of(function: FunctionDef) -> tuple[int, int]:
    return function.lineno, function.end_lineno or function.lineno


def _lines_of_call(call: CallSite, spot: Spot | None) -> tuple[int, int]:
    return _span(spot) if spot is not None else (call.call.lineno, call.call.end_lineno or call.call.lineno)


def _span(spot: Spot) -> tuple[int, int]:
    return spot.statement.lineno, spot.statement.end_lineno or spot.statement.lineno
