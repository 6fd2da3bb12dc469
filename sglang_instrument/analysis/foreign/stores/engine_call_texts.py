"""Find the numbers of an engine call in the JSON of what it was given and returned, without decoding it.

The lists of tokens make nearly all of these texts. A key is found with its quotes: within a string of JSON, a
quote has a backslash more, so that no text of a prompt can be taken for a key.
"""

import re
from typing import Final, NamedTuple

_DIGITS: Final = re.compile(rb"\d{1,18}")
_ID: Final = re.compile(rb'[^"\\]{1,200}')


class EngineCall(NamedTuple):
    """The numbers of a call; None where they are not told."""

    response_tokens: int | None = None
    prompt_tokens: int | None = None
    preempted: int | None = None
    weight_version: str | None = None
    sample: str | None = None


NOTHING: Final = EngineCall()


def engine_call_of(text: bytes | None, quote: bytes) -> EngineCall:
    """Return the numbers of a call.

    Args:
        text: JSON with the call's arguments and result; None if there is none.
        quote: How a quote is written there: with a backslash, if they are JSON in a string of JSON.
    """
    if text is None:
        return NOTHING
    # In the order in which the keys are written, so that the long lists are passed once.
    sample, at = _found(_ID, text, b"%brequest_id%b: %b" % (quote, quote, quote), 0)
    prompt_tokens, at = _length(text, b"%bprompt_ids%b: [" % (quote, quote), at)
    response_tokens, at = _length(text, b"%btoken_ids%b: [" % (quote, quote), at)
    preempted, at = _found(_DIGITS, text, b"%bnum_preempted%b: " % (quote, quote), at)
    version, _ = _found(_DIGITS, text, b"%bglobal_steps%b: " % (quote, quote), at)
    return EngineCall(
        response_tokens, prompt_tokens, None if preempted is None else int(preempted), version, sample
    )


def _length(text: bytes, mark: bytes, start: int) -> tuple[int | None, int]:
    """Return the length of a list of numbers, and where it ends."""
    at = text.find(mark, start)
    if at < 0:
        return None, start
    begin = at + len(mark)
    end = text.find(b"]", begin)
    if end <= begin:
        return (0 if end == begin else None), begin
    return text.count(b",", begin, end) + 1, end


def _found(rule: re.Pattern[bytes], text: bytes, mark: bytes, start: int) -> tuple[str | None, int]:
    """Return the value after a mark, and where it ends."""
    at = text.find(mark, start)
    found = rule.match(text, at + len(mark)) if at >= 0 else None
    return (None, start) if found is None else (found[0].decode("utf-8", "replace"), found.end())
