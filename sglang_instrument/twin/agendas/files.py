"""Write an agenda as JSON lines, a line a step and a line a turn, and read it step by step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import msgspec
import orjson

from sglang_instrument.errors import LogError
from sglang_instrument.safe_files.output import writing_output
from sglang_instrument.twin.agendas.planned import Agenda, AgendaRequest, AgendaStep, AgendaTurn, Sampling

_DIGITS: Final = 4  # of seconds


class _StepLine(msgspec.Struct, tag_field="kind", tag="step"):
    """A line of a step; those of its turns follow."""

    step: int
    flush: bool
    common_prefix_tokens: int
    evictions: bool
    limits: dict[int, int | None]
    enough: dict[int, int] = {}


class _TurnLine(msgspec.Struct, tag_field="kind", tag="turn", omit_defaults=True):
    """A line of a turn."""

    step: int
    worker: int
    request_id: str
    group: str
    turn: int
    start_sec: float
    wait_sec: float
    prompt_tokens: int
    shared_prefix_tokens: int
    generated_tokens: int
    call_sec: float
    sent_sec: float = 0.0
    returned_sec: float = 0.0
    server: str | None = None
    aborted: bool = False
    temperature: float | None = None
    logprobs: bool | None = None
    samples: int = 1
    after_sec: float = 0.0


def write_agenda(agenda: Agenda, path: Path) -> tuple[int, int]:
    """Write an agenda; return how many steps and turns it has.

    Raises:
        OSError: The file cannot be written.
    """
    steps = turns = 0
    with writing_output(path) as file:
        for step in agenda:
            for line in _lines_of(step):
                file.write(orjson.dumps(line) + b"\n")
            steps, turns = steps + 1, turns + sum(1 for _ in step.turns)
    return steps, turns


def _lines_of(step: AgendaStep) -> Iterator[dict[str, Any]]:
    limits = {str(worker): limit for worker, limit in step.limits.items()}
    enough = {str(worker): groups for worker, groups in step.enough.items()}
    yield {
        "kind": "step",
        "step": step.step,
        "flush": step.is_flushed,
        "common_prefix_tokens": step.common_prefix_tokens,
        "evictions": step.has_evictions,
        "limits": limits,
        **({"enough": enough} if enough else {}),
    }
    for request in step.requests:
        for number, turn in enumerate(request.turns):
            line = {
                "kind": "turn",
                "step": step.step,
                "worker": request.worker,
                "request_id": request.request_id,
                "group": request.group,
                "turn": number,
                "start_sec": round(request.start_sec, _DIGITS),
                "wait_sec": round(turn.wait_sec, _DIGITS),
                "prompt_tokens": turn.prompt_tokens,
                "shared_prefix_tokens": turn.shared_prefix_tokens,
                "generated_tokens": turn.generated_tokens,
                "call_sec": round(turn.call_sec, _DIGITS),
                "server": turn.server,
            }
            for name, sec in (("sent_sec", turn.sent_sec), ("returned_sec", turn.returned_sec)):
                if round(sec, _DIGITS):
                    line[name] = round(sec, _DIGITS)
            if turn.is_aborted:
                line["aborted"] = True
            usual = asdict(Sampling())
            line |= {name: value for name, value in asdict(turn.sampling).items() if value != usual[name]}
            if number + 1 == len(request.turns):
                line["after_sec"] = round(request.after_sec, _DIGITS)
            yield line


def read_agenda(path: Path) -> Agenda:
    """Return the agenda of a file, which is read anew for each iteration.

    Raises:
        LogError: While it is iterated: a line is no line of an agenda.
    """
    return Agenda(lambda: _steps_of(path))


def _steps_of(path: Path) -> Iterator[AgendaStep]:
    decoder = msgspec.json.Decoder(_StepLine | _TurnLine)
    head: _StepLine | None = None
    turns: list[_TurnLine] = []
    with path.open("rb") as file:
        for number, text in enumerate(file, 1):
            try:
                line = decoder.decode(text)
            except msgspec.MsgspecError as reason:
                raise LogError(f"{path}:{number}: no line of an agenda: {reason}") from None
            if isinstance(line, _TurnLine) and (head is None or line.step != head.step):
                raise LogError(f"{path}:{number}: a turn of step {line.step} without a line of that step")
            if isinstance(line, _TurnLine):
                turns.append(line)
                continue
            if head is not None:
                yield _step_of(head, turns)
            head, turns = line, []
    if head is not None:
        yield _step_of(head, turns)


def _step_of(head: _StepLine, lines: list[_TurnLine]) -> AgendaStep:
    by_request: dict[tuple[int, str], list[_TurnLine]] = {}
    for line in lines:
        by_request.setdefault((line.worker, line.request_id), []).append(line)
    requests = tuple(
        AgendaRequest(
            request_id=of_request[0].request_id,
            worker=of_request[0].worker,
            group=of_request[0].group,
            start_sec=of_request[0].start_sec,
            turns=tuple(map(_turn_of, of_request)),
            after_sec=of_request[-1].after_sec,
        )
        for of_request in by_request.values()
    )
    return AgendaStep(
        *(head.step, requests, head.limits, head.flush),
        *(head.common_prefix_tokens, head.evictions, head.enough),
    )


def _turn_of(line: _TurnLine) -> AgendaTurn:
    return AgendaTurn(
        line.prompt_tokens,
        line.shared_prefix_tokens,
        line.generated_tokens,
        line.wait_sec,
        line.call_sec,
        line.server,
        line.aborted,
        Sampling(line.temperature, line.logprobs, line.samples),
        line.sent_sec,
        line.returned_sec,
    )
