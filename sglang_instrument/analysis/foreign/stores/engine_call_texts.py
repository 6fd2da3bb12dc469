"""Find the numbers of an engine call in the JSON of what it was given and returned, without decoding it.

The lists of tokens make nearly all of these texts. A key is found with its quotes: within a string of JSON, a
quote has a backslash more, so that no text of a prompt can be taken for a key.
"""

import re
from typing import Final, NamedTuple

_DIGITS: Final = re.compile(rb"\d{1,18}")
_LONGEST_ID: Final = 200


class EngineCall(NamedTuple):
    """The numbers of a call; None where they are not told."""

    response_tokens: int | None = None
    prompt_tokens: int | None = None
    preempted: int | None = None
    weight_version: str | None = None
    sample: str | None = None


_NOTHING: Final = EngineCall()


class EngineCallTexts:
    """Finds the numbers of calls in texts that write quotes in one way."""

    def __init__(self, quote: bytes) -> None:
        """Prepare the marks. `quote` has a backslash where the texts are JSON in a string of JSON."""
        self._quote = quote
        self._request_id = b"%brequest_id%b: %b" % (quote, quote, quote)
        self._prompt_ids = b"%bprompt_ids%b: [" % (quote, quote)
        self._token_ids = b"%btoken_ids%b: [" % (quote, quote)
        self._num_preempted = b"%bnum_preempted%b: " % (quote, quote)
        self._global_steps = b"%bglobal_steps%b: " % (quote, quote)

    def call_of(self, text: bytes | None) -> EngineCall:
        """Return the numbers of a call, from the JSON of its arguments and result; None if there is none."""
        if text is None:
            return _NOTHING
        # In the order in which the keys are written, so that the long lists are passed once.
        sample, position = self._sample(text)
        prompt_tokens, position = _length(text, self._prompt_ids, position)
        response_tokens, position = _length(text, self._token_ids, position)
        preempted = _digits(text, self._num_preempted, position)
        version = _digits(text, self._global_steps, position)
        return EngineCall(
            response_tokens,
            prompt_tokens,
            None if preempted is None else int(preempted),
            None if version is None else version.decode(),
            sample,
        )

    def _sample(self, text: bytes) -> tuple[str | None, int]:
        """Return the request's id, and where it ends."""
        position = text.find(self._request_id)
        if position < 0:
            return None, 0
        begin = position + len(self._request_id)
        end = text.find(self._quote, begin, begin + _LONGEST_ID + len(self._quote))
        if end <= begin:
            return None, begin
        return text[begin:end].decode("utf-8", "replace"), end


def _length(text: bytes, mark: bytes, start: int) -> tuple[int | None, int]:
    """Return the length of a list of numbers, and where it ends."""
    position = text.find(mark, start)
    if position < 0:
        return None, start
    begin = position + len(mark)
    end = text.find(b"]", begin)
    if end <= begin:
        return (0 if end == begin else None), begin
    return text.count(b",", begin, end) + 1, end


def _digits(text: bytes, mark: bytes, start: int) -> bytes | None:
    """Return the digits after a mark."""
    position = text.find(mark, start)
    digits = _DIGITS.match(text, position + len(mark)) if position >= 0 else None
    return None if digits is None else digits[0]
