"""Find out which steps of two runs had the same prompts.

Request ids are drawn anew in each run, and no text is logged. What a log has of a prompt is its length, in
tokens. The lines that have it are read here, and not with the digest: a column for it would make every
command read 5 to 8 % longer, because the length often stands in a record without a duration, which a digest
skips.
"""

from collections import defaultdict
from typing import Final

from sglang_instrument.analysis.reading.records.fields import RequestIds
from sglang_instrument.analysis.reading.records.lines import Integer
from sglang_instrument.analysis.run.newest_records import newest_records
from sglang_instrument.analysis.run.opening import Run

_LENGTHS: Final = ("initial_prompt_length", "prompt_length", "prompt_tokens")
_FEWEST_LENGTHS: Final = 4  # with fewer different ones, other prompts have the same lengths by chance


class _Lengths(RequestIds, gc=False):
    initial_prompt_length: Integer | None = None
    prompt_length: Integer | None = None
    prompt_tokens: Integer | None = None


def same_prompts(first: Run, other: Run, steps: list[int]) -> bool:
    """Return whether two runs had prompts of the same lengths in each of these steps."""
    if not steps:
        return False
    if any((step, False) in run.pruned_steps for run in (first, other) for step in steps):
        return False  # their lengths are gone
    for step in steps:
        mine, others = _prompt_lengths(first, step), _prompt_lengths(other, step)
        if mine != others or len(set(mine)) < _FEWEST_LENGTHS:
            return False
    return True


def _prompt_lengths(run: Run, step: int) -> list[int]:
    """Return the length of each request's prompt in a step, in order."""
    lengths: dict[str, int] = defaultdict(lambda: 2**62)
    files = run.files_of(step=step, validate=False)
    for _, _, fields in newest_records(run, files, _Lengths, keys=_LENGTHS):
        name = str(fields.request_id)
        for length in (getattr(fields, key) for key in _LENGTHS):
            if length is not None:  # a later call of the request has a longer prompt: the conversation so far
                lengths[name] = min(lengths[name], length)
    return sorted(lengths.values())
