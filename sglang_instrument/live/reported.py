"""Sum up what the engine reported of a step's calls, and which requests a filter threw away."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sglang_instrument.analysis.reading.files import File
from sglang_instrument.analysis.reading.records.fields import RequestIds
from sglang_instrument.analysis.run.newest_records import newest_records
from sglang_instrument.analysis.run.opening import Run

#: A line without any of these holds nothing that is needed here.
_NAMES: Final = ("cached_tokens", "queue_time", "weight_version", "group_index")


class _ReportedCall(RequestIds, gc=False):
    """What a call, or a filter of groups, logs; a trainer may put anything there."""

    group_index: Any = None
    kept: Any = None
    prompt_tokens: Any = None
    cached_tokens: Any = None
    queue_time: Any = None
    e2e_latency: Any = None
    weight_version: Any = None


@dataclass
class Reported:
    """What the records of a step's calls say.

    Attributes:
        prompt_tokens, cached_tokens: Sums over the calls that report both.
        queue_sec, call_sec: Sums over the calls that report both.
        versions: How many calls each version of the weights answered.
        has_filter: Whether a filter logs which groups it keeps.
        filtered: Ids of the requests in groups that a filter threw away.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    queue_sec: float = 0.0
    call_sec: float = 0.0
    versions: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    has_filter: bool = False
    filtered: set[str] = field(default_factory=set)

    @property
    def staleness(self) -> float | None:
        """How many versions behind the newest of the step the weights of a call were, on average."""
        calls = sum(self.versions.values())
        if not calls:
            return None
        return max(self.versions) - sum(version * count for version, count in self.versions.items()) / calls


def reported(run: Run, files: Sequence[File]) -> Reported:
    """Return what the records in some files of a run report."""
    totals = Reported()
    groups: dict[Any, set[str]] = defaultdict(set)
    dropped: set[Any] = set()
    for _, _, fields in newest_records(run, files, _ReportedCall, keys=_NAMES):
        _add_call(totals, fields)
        group = fields.group_index
        if isinstance(group, int) and fields.request_id is not None:
            groups[group].add(str(fields.request_id))
        if isinstance(group, int) and isinstance(fields.kept, bool):
            totals.has_filter = True
            if not fields.kept:
                dropped.add(group)
    totals.filtered = set().union(*(groups[group] for group in dropped))
    return totals


def _add_call(totals: Reported, fields: _ReportedCall) -> None:
    prompt, cached = _number(fields.prompt_tokens), _number(fields.cached_tokens)
    if prompt is not None and cached is not None:
        totals.prompt_tokens += int(prompt)
        totals.cached_tokens += int(cached)
    queue, call = _number(fields.queue_time), _number(fields.e2e_latency)
    if queue is not None and call is not None:
        totals.queue_sec += queue
        totals.call_sec += call
    version = _version(fields.weight_version)
    if version is not None and fields.request_id is not None:
        totals.versions[version] += 1


def _number(value: Any) -> float | None:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0 else None


def _version(value: Any) -> int | None:
    """Return a version of the weights as a number: SGLang reports it as a text."""
    try:
        return int(value) if isinstance(value, (int, str)) else None
    except ValueError:  # "default", before the first update
        return None
