"""Read how the tokens of each call were drawn, as the servers logged it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sglang_instrument.analysis.reading.records.engine_fields import caller_rid
from sglang_instrument.analysis.reading.records.fields import Fields
from sglang_instrument.analysis.run.newest_records import newest_records
from sglang_instrument.twin.agendas.planned import Sampling

if TYPE_CHECKING:
    from sglang_instrument.analysis.run.opening import Run


class _SamplingFields(Fields, gc=False, omit_defaults=True):
    """What a server logs of a call."""

    rid: Any = None
    temperature: float | None = None
    logprobs: bool | None = None
    samples: int | None = None


def sampling_by_call(run: Run) -> dict[str, Sampling]:
    """Return how the tokens of each call were drawn, by its `rid`, as far as servers told."""
    return dict(_told(run))


def _told(run: Run) -> Iterator[tuple[str, Sampling]]:
    files = [file for file in run.files if file.place is not None]
    for _, _, fields in newest_records(run, files, _SamplingFields, events=("engine_request",)):
        rids = fields.rid if isinstance(fields.rid, list) else [fields.rid]
        samples = fields.samples if fields.samples is not None and fields.samples > 1 else 1
        for rid in rids:
            if isinstance(rid, str):
                yield caller_rid(rid), Sampling(fields.temperature, fields.logprobs, samples)
