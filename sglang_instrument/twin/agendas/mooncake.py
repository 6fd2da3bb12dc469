"""Write an agenda as a trace of Mooncake: a request a line, with hashes of its prompt's blocks.

The format is that of github.com/kvcache-ai/Mooncake, FAST25-release/traces: `timestamp` in milliseconds,
`input_length`, `output_length`, `hash_ids` of blocks of 512 tokens. It is open: a request comes at its time,
whether the turn before has ended or not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from sglang_instrument.twin.agendas.planned import Agenda, AgendaRequest, AgendaStep
from sglang_instrument.twin.agendas.sequences import Piece, first_prompt, fresh_tokens, kept_pieces

_BLOCK: Final = 512  # tokens


def mooncake_lines(agenda: Agenda) -> Iterator[dict[str, Any]]:
    """Yield the lines of a trace, in the order of time within each step; steps follow each other."""
    ids: dict[tuple[int, tuple[Piece, ...]], int] = {}
    begin_sec = 0.0
    for step in agenda:
        calls = sorted(
            (call for request in step.requests for call in _calls_of(step, request)), key=lambda call: call[0]
        )
        for start_sec, prompt, tokens in calls:
            yield {
                "timestamp": round(1000 * (begin_sec + start_sec)),
                "input_length": sum(length for _, _, length in prompt),
                "output_length": tokens,
                "hash_ids": _hashes(prompt, ids),
            }
        begin_sec += max(map(_end_of, step.requests), default=0.0)


def _calls_of(step: AgendaStep, request: AgendaRequest) -> Iterator[tuple[float, list[Piece], int]]:
    """Yield of each call when it was made, its prompt, and the tokens of its reply."""
    now, sequence = request.start_sec, first_prompt(step, request)
    for number, turn in enumerate(request.turns):
        if number:
            sequence = kept_pieces(sequence, turn.shared_prefix_tokens)
            fresh = turn.prompt_tokens - turn.shared_prefix_tokens
            sequence.append((fresh_tokens(step, request, number), 0, fresh))
        now += turn.wait_sec
        yield now, [piece for piece in sequence if piece[2]], turn.generated_tokens
        now += turn.call_sec
        reply = f"reply {step.step} {request.worker} {request.request_id} {number}"
        sequence = [*sequence, (reply, 0, turn.generated_tokens)]


def _end_of(request: AgendaRequest) -> float:
    took = sum(turn.wait_sec + turn.call_sec for turn in request.turns)
    return request.start_sec + took + request.after_sec


def _hashes(prompt: list[Piece], ids: dict[tuple[int, tuple[Piece, ...]], int]) -> list[int]:
    """Return a number for each block of a prompt: the same where the prompt is the same up to its end."""
    before, hashes = -1, []
    for block in _blocks(prompt):
        before = ids.setdefault((before, tuple(block)), len(ids))
        hashes.append(before)
    return hashes


def _blocks(prompt: list[Piece]) -> Iterator[list[Piece]]:
    block: list[Piece] = []
    room = _BLOCK
    for name, first, length in prompt:
        begin = first
        end = first + length
        while begin < end:
            taken = min(room, end - begin)
            block.append((name, begin, taken))
            begin, room = begin + taken, room - taken
            if not room:
                yield block
                block, room = [], _BLOCK
    if block:
        yield block
