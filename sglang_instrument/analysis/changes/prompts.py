"""Find out which steps of two runs had the same prompts.

Request ids are drawn anew in each run, and no text is logged. What a log has of a prompt is its length, in
tokens. The lines that have it are read here, and not with the digest: a column for it would make every
command read 5 to 8 % longer, because the length often stands in a record without a duration, which a digest
skips.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final

import orjson

from sglang_instrument.analysis.reading.files import newest_run_filter
from sglang_instrument.analysis.run.opening import Run
from sglang_instrument.schema import LOG_OPENED

_LENGTHS: Final = ("initial_prompt_length", "prompt_length", "prompt_tokens")
_TELLING: Final = re.compile(rb'"(?:%s)"' % "|".join([*_LENGTHS, LOG_OPENED]).encode())
_FEWEST_LENGTHS: Final = 4  # with fewer different ones, other prompts have the same lengths by chance


def same_prompts(one: Run, other: Run, steps: list[int]) -> bool:
    """Return whether two runs had prompts of the same lengths in each of these steps."""
    if not steps:
        return False
    if any((step, False) in run.pruned_steps for run in (one, other) for step in steps):
        return False  # their lengths are gone
    for step in steps:
        mine, others = _prompt_lengths(one, step), _prompt_lengths(other, step)
        if mine != others or len(set(mine)) < _FEWEST_LENGTHS:
            return False
    return True


def _prompt_lengths(run: Run, step: int) -> list[int]:
    """Return the length of each request's prompt in a step, in order."""
    run.demand_log()
    lengths: dict[str, int] = defaultdict(lambda: 2**62)
    counts = newest_run_filter(run.files)
    for file in run.files_of(step=step, validate=False):
        run_id = None
        for chunk in run.read_lines(file):
            for fields in map(_fields, _telling_lines(chunk)):
                run_id = fields.get("run_id", run_id)
                if counts(file, run_id):
                    for length in _lengths(fields):
                        name = str(fields.get("request_id"))
                        # A later call of the request has a longer prompt: the conversation so far.
                        lengths[name] = min(lengths[name], length)
    return sorted(lengths.values())


def _telling_lines(chunk: bytes) -> Iterator[bytes]:
    """Yield the lines that name a prompt's length, or the run that the lines after it belong to."""
    done = 0
    for found in _TELLING.finditer(chunk):
        if found.start() >= done:
            end = chunk.find(b"\n", found.end())
            done = len(chunk) if end < 0 else end
            yield chunk[chunk.rfind(b"\n", 0, found.start()) + 1 : done]


def _fields(line: bytes) -> dict[str, Any]:
    try:
        extra = orjson.loads(line).get("extra")
    except (ValueError, AttributeError):
        return {}
    return extra if isinstance(extra, dict) else {}


def _lengths(fields: dict[str, Any]) -> list[int]:
    return [fields[name] for name in _LENGTHS if type(fields.get(name)) is int]
