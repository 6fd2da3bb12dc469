"""Make requests of what lines of decode cover: slots of the decoder.

A slot is busy from when as many requests run to when fewer do.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import polars as pl

from sglang_instrument.analysis.foreign.sglang.decoding import BatchLine, ends_of

_MOST_SLOTS: Final = 4096  # of a server; a line that tells of more is not trusted
#: Rows of all servers. A log of a million lines has about as many; what lines say beyond that is counted.
MOST_ROWS: Final = 1_000_000
_PAUSE_US: Final = 2_000_000  # a longer time that no line covers ends all slots
_Slot = tuple[int, int, int, int, int, int]
_SLOT: Final = {
    "worker": pl.Int64,
    "step": pl.Int64,
    "number": pl.Int64,
    "start_us": pl.Int64,
    "end_us": pl.Int64,
    "response_tokens": pl.Int64,
}


def all_slots(lines: Mapping[tuple[int, int], Sequence[BatchLine]]) -> tuple[list[_Slot], bool]:
    """Return the slots of all workers and steps, and whether there are more of them than are kept."""
    slots: list[_Slot] = []
    for (worker, step), of_step in lines.items():
        for slot in slots_of(worker, step, of_step):
            if len(slots) >= MOST_ROWS:
                return slots, True
            slots.append(slot)
    return slots, False


def slots_of(worker: int, step: int, lines: Sequence[BatchLine]) -> Iterator[_Slot]:
    """Yield from when to when the slots of a worker were busy in a step, with the tokens of each.

    Args:
        worker: Its number.
        step: That of the step.
        lines: The lines of decode of the step that cover some time, in order.
    """
    begun: list[tuple[float, float]] = []  # of busy slots: when, and after how many tokens
    end = number = 0
    tokens = 0.0
    for line, ended in zip(lines, ends_of(lines), strict=True):
        now = max(end, ended - (line.busy_us or 0))
        running = min(line.running, _MOST_SLOTS)
        stay = 0 if begun and now - end > _PAUSE_US else running
        share = _share(line, len(begun), running) if stay else 0.0
        while len(begun) > stay:
            start, before = begun.pop()
            stop = end if share == 0.0 else now + share * (ended - now)
            yield worker, step, number, int(start), int(stop), round(tokens + share * line.tokens - before)
            number += 1
        share = _share(line, len(begun), running) or 1.0
        new = (ended - share * (ended - now), tokens + (1.0 - share) * line.tokens)
        begun += [new] * (running - len(begun))
        tokens += line.tokens
        end = max(end, ended)
    for start, before in begun:
        yield worker, step, number, int(start), end, round(tokens - before)
        number += 1


def _share(line: BatchLine, before: int, running: int) -> float:
    """Return for which share of a line's time those slots were busy that ended, or began, in it; 0: unknown.

    The line tells the tokens of all slots, and those that were busy at both ends have a token a step.
    """
    changed = abs(before - running)
    if line.total is None or not changed or line.tokens <= 0:
        return 0.0
    rest = line.total / line.tokens - min(before, running)
    return min(max(rest / changed, 0.0), 1.0)


def as_calls(rows: Sequence[_Slot]) -> pl.DataFrame:
    """Return a call of the engine for each slot."""
    calls = pl.DataFrame(rows, schema=_SLOT, orient="row").with_columns(
        request_id=pl.format("{}-{}-{}", "worker", "step", "number"),
        task=pl.int_range(1, pl.len() + 1),
        event=pl.lit("turn_engine_call"),
        turn=pl.lit(0),
    )
    return calls.drop("number")
