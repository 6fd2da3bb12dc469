"""Say from which weights each reply's tokens came, and its cached prefix: the lineage of calls of engines.

A scheduler that logs its updates and flushes (`sglang/weights`) tells which weights it had when. Until it is
flushed, the cache keeps keys and values that older weights computed. So a prefix from the cache may be of
any weights since the last flush. How much of it is older than the current weights:

- at most all of it, if weights changed since the flush;
- at least what no later call can have computed: no call that was admitted under the current weights has
  begun to compute at an earlier token than this one's prefix ends. A prefix that ends at a node of the cache
  that was there before the update is older as a whole.

Where prompts end at one node of the cache they are the same: then the first one's limits hold for all.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from sglang_instrument.analysis.answers.weights.records import as_number, weight_spans
from sglang_instrument.analysis.answers.weights.served import served_calls

if TYPE_CHECKING:
    from sglang_instrument.analysis.run.opening import Run

_COLUMNS: Final[dict[str, Any]] = {
    **dict.fromkeys(("rid", "request_id"), pl.String),
    **dict.fromkeys(("turn", "step"), pl.Int64),
    **dict.fromkeys(("server", "scheduler"), pl.String),
    **dict.fromkeys(("start_us", "end_us"), pl.Int64),
    **dict.fromkeys(("label", "first_weights", "weights", "prefix_weights"), pl.String),
    **dict.fromkeys(("updates_during", "updates_since_flush"), pl.Int64),
    **dict.fromkeys(("prompt_tokens", "cached_tokens", "completion_tokens"), pl.Int64),
    **dict.fromkeys(("stale_least", "stale_most"), pl.Int64),
    "label_is_wrong": pl.Boolean,
}
_AT_ONCE_US: Final = 1_000_000  # a label may change so much later than the weights


@dataclass
class _Weights:
    """What happened to the weights, and the cache, of one scheduler, in the order of time."""

    begun: list[int] = field(default_factory=list)
    done: list[int] = field(default_factory=list)
    versions: list[str | None] = field(default_factory=list)
    flushed: list[int] = field(default_factory=list)
    labels: list[tuple[int, str]] = field(default_factory=list)

    def add(self, span: dict[str, Any]) -> None:
        """Add an update or a flush that succeeded; the pieces of one version are one update."""
        if span["part"] == "flush":
            self.flushed.append(span["end_us"])
            return
        version = span["weight_version"]
        if version is not None and self.versions and self.versions[-1] == version:
            self.done[-1] = max(self.done[-1], span["end_us"])
            return
        self.begun.append(span["start_us"])
        self.done.append(span["end_us"])
        self.versions.append(version)

    def done_by(self, at_us: int) -> int:
        """Return how many updates were done by then."""
        return bisect_right(self.done, at_us)

    def begun_by(self, at_us: int) -> int:
        """Return how many updates had begun by then."""
        return bisect_right(self.begun, at_us)

    def kept_from(self, at_us: int) -> int:
        """Return how many updates had begun before the last flush by then: the cache has no older weights."""
        last = bisect_right(self.flushed, at_us)
        return self.begun_by(self.flushed[last - 1]) if last else 0

    def name(self, updates: int) -> str | None:
        """Return what to call the weights after so many updates; None for a version that is not known."""
        if updates and self.versions[updates - 1] is not None:
            return self.versions[updates - 1]
        after = self.versions[updates] if updates < len(self.versions) else None
        if not updates and after is not None:
            return f"before {after}"
        return f"update {updates}" if updates else "first"


def lineage(run: Run) -> pl.DataFrame:
    """Return one row per call of an engine whose scheduler is known, in the order of time.

    Returns:
        rid; request_id, turn, step: of the caller; server, scheduler; start_us, end_us; label: the version
        that the reply says; first_weights, weights: those with which its tokens began and ended;
        updates_during: how many updates were between; prefix_weights: the oldest of which its cached prefix
        may be; updates_since_flush: how many older weights the cache may hold; prompt_tokens, cached_tokens,
        completion_tokens;
        stale_least, stale_most: how many of the cached tokens are of older weights than first_weights, at
        least and at most; label_is_wrong: whether the label contradicts the updates. Null where the log does
        not tell.
    """
    return lineage_of(weight_spans(run), served_calls(run))


def lineage_of(spans: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of `lineage` from both tables."""
    of_schedulers = _histories(spans)
    rows = []
    for (scheduler,), of_scheduler in calls.drop_nulls("scheduler").group_by(
        "scheduler", maintain_order=True
    ):
        history = of_schedulers.get(str(scheduler))
        rows += (
            [_unknown(call) for call in of_scheduler.to_dicts()]
            if history is None
            else _rows(history, of_scheduler)
        )
    return pl.DataFrame(rows, schema=_COLUMNS, strict=False).sort("start_us", "rid")


def lineage_by_weights(calls: pl.DataFrame) -> pl.DataFrame:
    """Return rows of `lineage` summed by the weights with which replies began, in the order of time.

    Returns:
        first_weights; calls; mixed: calls with updates during their reply; completion_tokens, cached_tokens,
        stale_least, stale_most: sums; wrong_labels. Null where the log does not tell.
    """
    wrong = pl.col("label_is_wrong")
    return calls.group_by("first_weights", maintain_order=True).agg(
        calls=pl.len().cast(pl.Int64),
        mixed=(pl.col("updates_during") > 0).sum().cast(pl.Int64),
        completion_tokens=_sum("completion_tokens"),
        cached_tokens=_sum("cached_tokens"),
        stale_least=_sum("stale_least"),
        stale_most=_sum("stale_most"),
        wrong_labels=pl.when(wrong.count() > 0).then(wrong.sum()).cast(pl.Int64),
    )


def _sum(name: str) -> pl.Expr:
    return pl.when(pl.col(name).count() > 0).then(pl.col(name).sum())


def _histories(spans: pl.DataFrame) -> dict[str, _Weights]:
    histories: dict[str, _Weights] = {}
    for span in spans.filter(role="scheduler").sort("end_us").to_dicts():
        if span["is_done"] is not False and span["part"] in ("transfer", "flush"):
            histories.setdefault(span["process"], _Weights()).add(span)
    labelled = spans.filter(role="server", part="label").drop_nulls("weight_version")
    labels = list(labelled.select("start_us", "weight_version").iter_rows())
    for history in histories.values():
        history.labels += labels
    return histories


def _unknown(call: dict[str, Any]) -> dict[str, Any]:
    return {**{name: call[name] for name in _COLUMNS if name in call}, "label": call["weight_version"]}


def _rows(history: _Weights, calls: pl.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of the calls of one scheduler."""
    rows = []
    prefixes = _Prefixes(history)
    ordered = calls.with_columns(at=pl.coalesce("admitted_us", "start_us")).sort("at", "rid")
    for call in ordered.to_dicts():
        admitted, end = call["at"], max(call["end_us"] or call["at"], call["at"])
        first, last = history.done_by(admitted), history.done_by(end)
        updates_at_flush = history.kept_from(admitted)
        stale = prefixes.stale(call, first, updates_at_flush)
        rows.append(
            {
                **_unknown(call),
                "first_weights": history.name(first),
                "weights": history.name(last),
                "updates_during": last - first,
                "prefix_weights": history.name(min(updates_at_flush, first))
                if call["cached_tokens"]
                else None,
                "updates_since_flush": max(0, first - updates_at_flush),
                "stale_least": stale[0],
                "stale_most": stale[1],
                "label_is_wrong": _is_wrong(history, call, end),
            }
        )
    return rows


class _Prefixes:
    """Bound how many cached tokens are older than the weights, call by call in the order of admission."""

    def __init__(self, history: _Weights) -> None:
        self._history = history
        self._updates = 0
        # The cache numbers its nodes in the order in which it makes them.
        self._highest: int | None = None  # the newest known node from before the last update
        self._nodes: list[tuple[int, int]] = []  # when a node was there, and its number
        self._from: int | None = None  # the first token that a call of these weights computed
        self._running: list[tuple[int, int]] = []  # end, prompt tokens: of calls that may still write
        self._of_prompts: dict[int, tuple[int, int]] = {}  # by the node at which a prompt ends

    def stale(
        self, call: dict[str, Any], updates: int, updates_at_flush: int
    ) -> tuple[int | None, int | None]:
        """Return the least and the most tokens of older weights in the prefix of the next call."""
        if updates != self._updates:
            self._change(updates)
        cached, node = call["cached_tokens"], call["node"]
        least: int | None = 0
        most: int | None = 0
        if cached is None:
            least = most = None
        elif updates > updates_at_flush:
            is_old = node is not None and self._highest is not None and node <= self._highest
            most = cached
            least = cached if is_old or self._from is None else min(cached, self._from)
            least, most = self._same_prompt(call["prompt_node"], least, most)
        if cached is not None:
            self._from = cached if self._from is None else min(self._from, cached)
        if node is not None:
            self._nodes.append((call["at"], node))
        if call["prompt_node"] is not None:
            self._nodes.append((call["prompt_us"], call["prompt_node"]))
        self._running.append((call["end_us"] or 0, call["prompt_tokens"] or 0))
        return least, most

    def _same_prompt(self, end: int | None, least: int, most: int) -> tuple[int, int]:
        """Narrow the limits of a prompt by those of an equal one, whose call computed the rest of it."""
        if end is None:
            return least, most
        if end in self._of_prompts:
            first_least, first_most = self._of_prompts[end]
            return max(least, min(most, first_least)), min(most, first_most)
        if self._highest is not None and end <= self._highest:
            return most, most  # the whole prompt was in the cache before the update
        self._of_prompts[end] = least, most
        return least, most

    def _change(self, updates: int) -> None:
        """Begin with new weights: only calls that run on compute with them, from behind their prompts."""
        changed = self._history.begun[updates - 1]
        self._running = [call for call in self._running if call[0] > changed]
        self._from = min((prompt for _, prompt in self._running), default=None)
        nodes = (node for time_us, node in self._nodes if time_us <= changed)
        self._updates, self._highest = updates, max(nodes, default=self._highest)
        self._of_prompts.clear()
        self._nodes.clear()


def _is_wrong(history: _Weights, call: dict[str, Any], end: int) -> bool | None:
    """Return whether the label of a reply is none of the versions that the scheduler may have had at its end.

    None if there is no label, or the versions are not known.
    """
    label = call["weight_version"]
    earliest, latest = history.done_by(end - _AT_ONCE_US), history.begun_by(end + _AT_ONCE_US)
    if label is None or not any(history.versions):
        return None
    if any(version == label and since <= end + _AT_ONCE_US for since, version in history.labels):
        return False  # a server was told to call its weights so
    possible = [history.versions[update - 1] for update in range(max(earliest, 1), latest + 1)]
    if earliest == 0:  # the version before the first update is not logged, but it is not a later one
        later = {version for version in history.versions[latest:] if version is not None}
        return label in later - {version for version in possible if version is not None}
    if None in possible:
        return None
    return label not in possible and as_number(label) is not None
