"""Find what weight updates did wrong: prefixes of older weights, wrong labels, aborts, one slow server."""

from collections.abc import Iterator
from statistics import median
from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.answers.weights.lineage import lineage_of
from sglang_instrument.analysis.answers.weights.records import weight_spans
from sglang_instrument.analysis.answers.weights.served import CALLS, served_calls
from sglang_instrument.analysis.answers.weights.updates import last_server_longer_sec, updates_of
from sglang_instrument.analysis.ledger.intervals import sec_between
from sglang_instrument.analysis.run.opening import Run
from sglang_instrument.analysis.verdict.evidence.detector import Findings, NamedCause, detector
from sglang_instrument.analysis.verdict.evidence.effects import floor_of
from sglang_instrument.analysis.verdict.evidence.finding import Finding, seconds, step_name
from sglang_instrument.analysis.verdict.evidence.run_evidence import LEAST_SEC, OF_STEP, Evidence

_NOT_PLANTED: Final = (
    "the simulated engines keep their weights; tests/support/planted_weights.py makes such runs"
)
STALE_PREFIX: Final = NamedCause(
    "stale-prefix",
    "run",
    "calls were served from a cached prefix that [older weights](../how-to/weights.md) computed: weights "
    "changed, and the cache was not flushed",
    "flush the cache with each update (`flush_cache=True`), and look whether the flush succeeded: requests "
    "in flight prevent it; `weights LOGS --lineage` names the calls",
    not_planted=_NOT_PLANTED,
)
WRONG_LABEL: Final = NamedCause(
    "wrong-label",
    "run",
    "replies say a version of the weights that their server did not have at their end, within a second",
    "importance weights and staleness rest on these labels: look at where the version is set; "
    "`weights LOGS --lineage` names the replies",
    not_planted=_NOT_PLANTED,
)
ABORTING_UPDATE: Final = NamedCause(
    "aborting-update",
    "run",
    "a weight update aborted at least half of the calls that ran when it began, and their requests did not "
    "go on",
    "pause in place, or let the rollout go on with what was written; `weights LOGS` shows each update",
    not_planted=_NOT_PLANTED,
)
SLOW_UPDATE: Final = NamedCause(
    "slow-update",
    "run, step",
    "one server had its weights at least a second, and half a transfer, after all others, because its own "
    "transfer took so much longer. A drain before it waits for calls that still run, and is none of it. Or, "
    "where the trainer trains beside its rollout, one update took all servers 1.5 times as long as any other",
    "look at that server's network, disk and GPU: `weights LOGS --update {update}` shows its parts",
    not_planted=_NOT_PLANTED,
)
_UPDATE: Final = "weights_update"
_TIMES: Final = 1.5  # times the longest of the other updates
_FEWEST_OTHERS: Final = 2
_MOST_NAMED: Final = 20  # calls in the evidence of a finding
_FEWEST_ABORTED: Final = 2
_OF_FLIGHT: Final = 0.5  # below this share of the calls in flight, aborts count as intended
Row = dict[str, Any]


@detector(STALE_PREFIX, WRONG_LABEL, ABORTING_UPDATE, SLOW_UPDATE, needs_steps=False)
def find_weights_trouble(evidence: Evidence) -> Findings:
    """Yield what went wrong with weight updates, if the log tells of any."""
    if evidence.run is not None:
        yield from weights_findings(evidence.run)
        # Elsewhere `between-steps` tells of it.
        if not evidence.windows.is_empty() and evidence.gaps.overlaps:
            spans = evidence.weight_spans
            yield from _slow_transfers(evidence, updates_of(spans, pl.DataFrame(schema=CALLS)))


def weights_findings(run: Run) -> list[Finding]:
    """Return the findings about the weight updates of a run; they need no steps."""
    spans = weight_spans(run)
    if spans.filter(part="transfer").is_empty():
        return []
    # Calls are many: they are read only where a scheduler tells which weights it had.
    calls = served_calls(run) if "scheduler" in spans["role"] else pl.DataFrame(schema=CALLS)
    updates, history = updates_of(spans, calls), lineage_of(spans, calls)
    return [*_stale_prefixes(history), *_wrong_labels(history), *_aborts(updates), *_slow_servers(updates)]


def _stale_prefixes(history: pl.DataFrame) -> Iterator[Finding]:
    stale = history.filter(pl.col("stale_most") > 0)
    if stale.is_empty():
        return
    sure = stale.filter(pl.col("stale_least") > 0)
    known = history["stale_most"].count()
    tokens = f"{sure['stale_least'].sum():,} to {stale['stale_most'].sum():,} cached tokens"
    if len(sure) == len(stale) and sure["stale_least"].sum() == stale["stale_most"].sum():
        tokens = f"{sure['stale_least'].sum():,} cached tokens"
    were = f"{len(sure):,} of {known:,} calls were served from a prefix of older weights"
    if len(sure) < len(stale):
        may = f"{len(stale) - len(sure):,} {'more ' if len(sure) else f'of {known:,} calls '}may have been"
        were = f"{were}, {may}" if len(sure) else f"{may} served from a prefix of older weights"
    sentence = f"{were} ({tokens}): the cache was not flushed after the update"
    numbers = {"calls": len(stale), "sure": len(sure), "named": _named(stale)}
    yield Finding(STALE_PREFIX.name, "run", 0.0, sentence, evidence=numbers)


def _wrong_labels(history: pl.DataFrame) -> Iterator[Finding]:
    wrong = history.filter("label_is_wrong")
    if wrong.is_empty():
        return
    first = wrong.row(0, named=True)
    judged = history["label_is_wrong"].count()
    sentence = (
        f"{len(wrong):,} of {judged:,} replies have a label that contradicts the weight updates: "
        f"{first['rid']} says {first['label']}, its server had {first['weights']}"
    )
    numbers = {"calls": len(wrong), "named": _named(wrong)}
    yield Finding(WRONG_LABEL.name, "run", 0.0, sentence, evidence=numbers)


def _named(rows: pl.DataFrame) -> list[Row]:
    shown = ("rid", "request_id", "turn", "label", "weights", "cached_tokens", "stale_least", "stale_most")
    return rows.head(_MOST_NAMED).select(shown).to_dicts()


def _aborts(updates: list[Row]) -> Iterator[Finding]:
    def is_bad(row: Row) -> bool:
        gone = row["aborted"] or 0
        return gone >= _FEWEST_ABORTED and gone >= _OF_FLIGHT * row["running"]

    bad = list(filter(is_bad, updates))
    if not bad:
        return
    worst = max(bad, key=lambda row: row["aborted"])
    total = sum(row["aborted"] for row in bad)
    tokens = sum(row["aborted_tokens"] or 0 for row in bad)
    which = f"update {worst['update']} aborted {worst['aborted']:,} calls"
    if len(bad) > 1:
        which = f"{len(bad)} weight updates aborted {total:,} calls, {which}"
    sentence = f"{which}, {tokens:,} written tokens were thrown away; no other call went on with them"
    numbers = {"updates": [row["update"] for row in bad], "aborted": total, "tokens": tokens}
    yield Finding(ABORTING_UPDATE.name, "run", 0.0, sentence, evidence=numbers)


def _slow_servers(updates: list[Row]) -> Iterator[Finding]:
    """Yield the servers whose own transfer took longer than those of the others, and made them wait.

    The physical fact: the same weights go to all servers, so their transfers take as long. A transfer that
    only begins later, as after a drain, tells of what its server had to do before.
    """
    late: dict[str, list[tuple[float, Row]]] = {}
    for row in updates:
        late_sec = last_server_longer_sec(row)
        if late_sec is not None:
            late.setdefault(row["last_server"], []).append((late_sec, row))
    for server, times in late.items():
        lost = sum(sec for sec, _ in times)
        most, worst = max(times, key=lambda late_update: late_update[0])
        often = f"{len(times)} of {len(updates)} weight updates" if len(updates) > 1 else "the weight update"
        sentence = (
            f"{server} was the last server in {often}, {seconds(most)} after the others in update "
            f"{worst['update']}: its transfer took longer"
        )
        numbers = {
            "server": server,
            "updates": [row["update"] for _, row in times],
            "worst_update": worst["update"],
            "times": most,
        }
        step = worst["step"] if len(times) == 1 else None
        yield Finding(
            SLOW_UPDATE.name,
            "run" if step is None else "step",
            lost,
            sentence,
            step=step,
            event=_UPDATE,
            evidence=numbers,
        )


def _slow_transfers(evidence: Evidence, updates: list[Row]) -> Iterator[Finding]:
    """Yield the updates whose transfers took longer at every server than those of the other updates.

    The physical fact: the same weights took longer on their way. A transfer begins when the calls of its
    server have ended, or are held, so that no rollout beside it makes it longer.
    """
    parts = [(row, [server["transfer_sec"] for server in row["servers"]]) for row in updates]
    least = [
        (row, min(times)) for row, times in parts if times and None not in times and row["step"] is not None
    ]
    floor_sec = floor_of(evidence.windows)
    took = evidence.windows.filter(~pl.col("validate")).select(sec_between("begin_us", "done_us"))
    worth_sec = max(LEAST_SEC, OF_STEP * float(took.to_series().median() or 0.0))  # type: ignore[arg-type]
    for number, (row, sec) in enumerate(least):
        others = [other for place, (_, other) in enumerate(least) if place != number]
        if len(others) < _FEWEST_OTHERS:
            return
        usual = median(others)
        lost_sec = sec - usual
        if lost_sec < worth_sec or sec + floor_sec < _TIMES * (max(others) + floor_sec):
            continue
        sentence = (
            f"{step_name(row['step'], False)}: the transfer of update {row['update']} took {seconds(sec)} at "
            f"every server, usually {seconds(usual)}; {seconds(lost_sec)} lost"
        )
        numbers = {"updates": [row["update"]], "worst_update": row["update"], "sec": sec, "usual_sec": usual}
        yield Finding(
            SLOW_UPDATE.name, "step", lost_sec, sentence, step=row["step"], event=_UPDATE, evidence=numbers
        )
