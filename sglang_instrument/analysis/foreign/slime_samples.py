"""Convert the samples of slime's dumps into Structs; a field of another type is lost alone."""

from typing import Any, Final

import msgspec

from sglang_instrument.analysis.foreign.records.rows import is_whole
from sglang_instrument.analysis.reading.records.decoding import fitting
from sglang_instrument.analysis.reading.records.lines import Integer, Rejects
from sglang_instrument.errors import LogError

_LEAST_BYTES: Final = 8  # of a pickle, for a sample or an event of it


class SampleAttributes(msgspec.Struct, gc=False):
    """What slime tells at the end of a span."""

    completion_tokens: Integer | None = None
    prompt_tokens: Integer | None = None
    cached_tokens: Integer | None = None
    queue_time: float | None = None
    finish_reason: str | None = None
    error_type: str | None = None


class SampleEvent(msgspec.Struct, gc=False):
    """An event of a trace; `ts` is Unix seconds."""

    type: str
    name: str
    ts: float
    span_id: str | None = None
    attrs: SampleAttributes | None = None


class SampleTrace(msgspec.Struct, gc=False):
    """The events of a sample, in the order of time."""

    events: list[SampleEvent]


class PrefixCache(msgspec.Struct, gc=False):
    """What slime and Miles sum up of the prompts of a sample's calls."""

    total_prompt_tokens: Integer | None = None
    cached_tokens: Integer | None = None


class Sample(msgspec.Struct, gc=False):
    """A sample, as far as we use it."""

    trace: SampleTrace | None = None
    index: Integer | None = None
    group_index: Integer | str | None = None
    reward: Any = None
    response_length: Integer | None = None
    status: str | None = None
    weight_versions: list[str | Integer] | None = None
    prefix_cache_info: PrefixCache | None = None

    @property
    def prompt_tokens(self) -> tuple[int | None, int | None]:
        """The tokens of its prompts, and those in a cache; None where its trace tells, or nothing does."""
        cache = self.prefix_cache_info
        if cache is None or not cache.total_prompt_tokens or (self.trace is not None and self.trace.events):
            return None, None
        return cache.total_prompt_tokens, cache.cached_tokens

    @property
    def reward_or_none(self) -> float | None:
        """The reward, if it is one number: several of them are a dict."""
        known = type(self.reward) is float or is_whole(self.reward)
        return float(self.reward) if known else None


_INVALID = (msgspec.ValidationError, RecursionError, TypeError, UnicodeError)


def demand_written_out(listed: list[Any], pickled_bytes: int) -> None:
    """Raise if a dump's samples, events and versions are more than its bytes hold: a pickle may repeat one.

    Raises:
        LogError: They are.
    """
    count = len(listed)
    for item in listed:
        if isinstance(item, dict):
            trace, versions = item.get("trace"), item.get("weight_versions")
            events = trace.get("events") if isinstance(trace, dict) else None
            count += sum(len(many) for many in (events, versions) if isinstance(many, list))
    if count * _LEAST_BYTES > pickled_bytes:
        raise LogError(f"it repeats its samples or events: {count:,} in {pickled_bytes:,} bytes")


def samples_of(listed: list[Any], rejects: Rejects) -> list[Sample]:
    """Return the samples of a dump; count what is none, and events that are none."""
    samples = []
    for item in listed:
        try:
            samples.append(msgspec.convert(item, Sample))
        except _INVALID:
            if isinstance(item, dict):
                samples.append(_leniently(item, rejects))
            else:
                rejects.foreign += 1
    return samples


def _leniently(fields: dict[Any, Any], rejects: Rejects) -> Sample:
    sample = Sample(**fitting(Sample, fields))
    trace = fields.get("trace")
    events = trace.get("events") if isinstance(trace, dict) else None
    if sample.trace is None and isinstance(events, list):
        fitted = [fitting(SampleEvent, item) if isinstance(item, dict) else {} for item in events]
        whole = [event for event in fitted if {"type", "name", "ts"} <= event.keys()]
        rejects.foreign += len(events) - len(whole)
        sample.trace = SampleTrace([SampleEvent(**event) for event in whole])
    return sample
