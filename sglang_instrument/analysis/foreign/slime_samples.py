"""Convert the samples of slime's dumps into Structs; a field of another type is lost alone."""

from typing import Any

import msgspec

from sglang_instrument.analysis.foreign.records.rows import is_whole
from sglang_instrument.analysis.reading.records.decoding import fitting
from sglang_instrument.analysis.reading.records.lines import Integer, Rejects


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


class Sample(msgspec.Struct, gc=False):
    """A sample, as far as we use it."""

    trace: SampleTrace | None = None
    index: Integer | None = None
    group_index: Integer | str | None = None
    reward: Any = None
    response_length: Integer | None = None
    status: str | None = None
    weight_versions: list[str | Integer] | None = None

    @property
    def reward_or_none(self) -> float | None:
        """The reward, if it is one number: several of them are a dict."""
        known = type(self.reward) is float or is_whole(self.reward)
        return float(self.reward) if known else None


_INVALID = (msgspec.ValidationError, RecursionError, TypeError, UnicodeError)


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
