"""Say why two runs differ: which parts of a step changed, and how much of that each difference can carry.

A difference of settings, versions, hosts or lengths carries at most the seconds of the parts that it works
on: a running limit the queue and the decoding of calls, a tool's limit the tools, a log level none.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from sglang_instrument.analysis.answers.engine.call_times import paths_of
from sglang_instrument.analysis.answers.routing.server_calls import server_calls
from sglang_instrument.analysis.changes.why.works_on import (
    DECODE,
    ENGINE,
    EVERYTHING,
    LENGTHS,
    PREFILL,
    QUEUE,
    parts_of_setting,
)
from sglang_instrument.analysis.ledger.ledger import step_ledger
from sglang_instrument.analysis.reading.processes_of_run import read_processes
from sglang_instrument.analysis.settings.differences import Difference, differing_settings
from sglang_instrument.analysis.settings.recorded import MACHINE, PACKAGES, settings_of_run
from sglang_instrument.errors import LogError

if TYPE_CHECKING:
    from sglang_instrument.analysis.run.opening import Run

_LEAST_SEC: Final = 1e-3  # of a step: a smaller difference has no reasons
_LEAST_SHARE: Final = 0.05  # of the difference: what can carry less is said not to carry it
_SCHEMA: Final[dict[str, Any]] = {
    "kind": pl.String,
    "what": pl.String,
    "a": pl.String,
    "b": pl.String,
    "works_on": pl.String,
    "sec": pl.Float64,
    "share": pl.Float64,
    "sentence": pl.String,
}


@dataclass(frozen=True)
class StepParts:
    """What a step of a run is spent on.

    Attributes:
        sec: Mean seconds of a step, by part; the parts of the engine are those of its calls, where known.
        tokens: Mean response tokens of a step.
        last_tokens: Those of the request of a step that ends last.
        retractions: Of a step; None if not known.
    """

    sec: dict[str, float]
    tokens: float
    last_tokens: float
    retractions: float | None


def parts_of(run: "Run", steps: Sequence[int]) -> StepParts:
    """Return what steps of a run are spent on, on average."""
    chosen = ~pl.col("validate") & pl.col("step").is_in(list(steps))
    ledger = step_ledger(paths_of(run)).filter(chosen)
    in_engine = (pl.col("part") == ENGINE) & pl.col("event").is_in([QUEUE, PREFILL, DECODE])
    part = pl.when(in_engine).then("event").otherwise("part")
    sums = dict(ledger.group_by(part=part).agg(pl.col("sec").sum()).iter_rows())
    count = max(1, ledger["step"].n_unique())
    requests = run.digest.of_workers().requests.filter(chosen)
    last = requests.sort("end_us").group_by("step").last()
    retracted = server_calls(run).filter(chosen)["retractions"].drop_nulls()
    return StepParts(
        {name: sec / count for name, sec in sums.items()},
        float(requests["response_tokens"].sum() or 0) / count,
        float(last["response_tokens"].sum() or 0) / count,
        float(retracted.sum()) / count if len(retracted) else None,
    )


def reason_table(run: "Run", other: "Run", steps: Sequence[int], other_steps: Sequence[int]) -> pl.DataFrame:
    """Return what differs between two runs, ranked by how much of the difference of their steps it can carry.

    Args:
        run: Run A.
        other: Run B.
        steps: The steps of A that are compared.
        other_steps: Those of B.

    Returns:
        kind: lengths, setting, version, machine or hosts; what: its name; a, b: its values in words;
        works_on: the parts of a step that it works on, or "nothing", or "not known"; sec: the most seconds of
        the difference of a step that it can carry, negative where B is faster; null where not known; share:
        of the difference; null likewise; sentence. Several can carry the same seconds: shares do not add up.
    """
    parts, others = parts_of(run, steps), parts_of(other, other_steps)
    changes = _changes(parts, others)
    whole = sum(changes.values())
    rows = [_lengths(parts, others, changes, whole)] if parts.tokens and others.tokens else []
    differences = differing_settings(settings_of_run(run), settings_of_run(other))
    rows += [_of_setting(difference, changes, whole, parts, others) for difference in differences]
    hosts = _hosts(run), _hosts(other)
    if all(hosts) and hosts[0] != hosts[1]:
        shown = (_few(hosts[0]), _few(hosts[1]))
        rows.append(_row("hosts", "hosts", shown, (EVERYTHING,), changes, whole, ""))
    table = pl.DataFrame(rows, schema=_SCHEMA)
    return table.sort(pl.col("share").fill_null(-0.5), descending=True, maintain_order=True)


def change_table(run: "Run", other: "Run", steps: Sequence[int], other_steps: Sequence[int]) -> pl.DataFrame:
    """Return by how many seconds each part of a step changed, the largest change first.

    Args:
        run: Run A.
        other: Run B.
        steps: The steps of A that are compared.
        other_steps: Those of B.

    Returns:
        part; a_sec, b_sec: mean seconds of a step; change_sec.
    """
    parts, others = parts_of(run, steps).sec, parts_of(other, other_steps).sec
    names = sorted({*parts, *others})
    rows = [(name, parts.get(name, 0.0), others.get(name, 0.0)) for name in names]
    schema = {"part": pl.String, "a_sec": pl.Float64, "b_sec": pl.Float64}
    table = pl.DataFrame(rows, schema=schema, orient="row")
    change = (pl.col("b_sec") - pl.col("a_sec")).alias("change_sec")
    return table.with_columns(change).sort(pl.col("change_sec").abs(), descending=True, maintain_order=True)


def _changes(parts: StepParts, others: StepParts) -> dict[str, float]:
    """Return by how many seconds each part of a step changed; what other lengths explain is one of them.

    Decoding takes time in proportion to tokens, at the speed of A: to all of a step, or to those of the
    request that ends last, whichever explains more.
    """
    names = sorted({*parts.sec, *others.sec})
    changes = {name: others.sec.get(name, 0.0) - parts.sec.get(name, 0.0) for name in names}
    decoding = DECODE if DECODE in parts.sec and DECODE in others.sec else ENGINE
    if parts.tokens and others.tokens and decoding in changes:
        longer = max(_times_as_long(parts, others), key=lambda times: (times - 1) * sum(changes.values()))
        by_lengths = parts.sec.get(decoding, 0.0) * (longer - 1)
        changes[decoding] -= by_lengths
        changes[LENGTHS] = by_lengths
    return changes


def _lengths(parts: StepParts, others: StepParts, changes: dict[str, float], whole: float) -> dict[str, Any]:
    shown = (f"{parts.tokens:,.0f} tokens a step", f"{others.tokens:,.0f} tokens a step")
    times = _times_as_long(parts, others)[1:]
    last = f", the last response {times[0]:.2f} times as long" if times else ""
    return _row("lengths", LENGTHS, shown, (LENGTHS,), changes, whole, last)


def _times_as_long(parts: StepParts, others: StepParts) -> list[float]:
    """Return how many times as many tokens a step of B has, and its last request, if both are known."""
    pairs = [(parts.tokens, others.tokens), (parts.last_tokens, others.last_tokens)]
    return [after / before for before, after in pairs if before and after]


def _of_setting(
    difference: Difference, changes: dict[str, float], whole: float, parts: StepParts, others: StepParts
) -> dict[str, Any]:
    kind = {PACKAGES: "version", MACHINE: "machine"}.get(difference.source, "setting")
    works_on = parts_of_setting(difference)
    values = (_words(difference.a), _words(difference.b))
    aside = ""
    known = parts.retractions is not None and others.retractions is not None
    if known and works_on is not None and QUEUE in works_on and parts.retractions != others.retractions:
        aside = f"; retractions {parts.retractions:,.3g} to {others.retractions:,.3g} a step"
    return _row(kind, difference.name, values, works_on, changes, whole, aside)


def _row(
    kind: str,
    what: str,
    values: tuple[str, str],
    works_on: tuple[str, ...] | None,
    changes: dict[str, float],
    whole: float,
    aside: str,
) -> dict[str, Any]:
    sec = None if works_on is None else _carried(works_on, changes, whole)
    share = None if sec is None else (sec / whole if abs(whole) >= _LEAST_SEC else 0.0)
    return {
        "kind": kind,
        "what": what,
        "a": values[0],
        "b": values[1],
        "works_on": _named(works_on),
        "sec": sec,
        "share": share,
        "sentence": f"{what} {values[0]} -> {values[1]}{aside}: {_carries(share)}",
    }


def _carried(works_on: tuple[str, ...], changes: dict[str, float], whole: float) -> float:
    """Return the most seconds of the difference that changes of some parts carry: at most all of it."""
    sums = [sec for part, sec in changes.items() if part in works_on or EVERYTHING in works_on]
    same_way = sum(sec for sec in sums if sec * whole > 0)
    return min(same_way, whole) if whole > 0 else max(same_way, whole)


def _carries(share: float | None) -> str:
    if share is None:
        return "what it works on is not known"
    return (
        f"can carry up to {100 * share:.0f} % of the difference"
        if share >= _LEAST_SHARE
        else "cannot carry it"
    )


def _named(works_on: tuple[str, ...] | None) -> str:
    if works_on is None:
        return "not known"
    return "everything" if EVERYTHING in works_on else ", ".join(works_on) or "nothing"


def _words(values: Sequence[Any]) -> str:
    return " | ".join("none" if value is None else str(value) for value in values) or "not set"


def _hosts(run: "Run") -> list[str]:
    """Return the hosts on which processes of a run ran; [] if none described itself."""
    try:
        facts = read_processes(run.home).processes.values()
    except LogError:
        return []
    return sorted({host for process in facts if isinstance(host := process.get("host"), str)})


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def reason_words(table: pl.DataFrame) -> Iterator[str]:
    """Yield the reasons that can carry some of the difference, and in one sentence those that cannot."""
    carrying = table.filter(pl.col("share") >= _LEAST_SHARE)
    yield from carrying["sentence"]
    if carrying.is_empty():
        yield "nothing that both runs recorded of settings, versions, hosts and lengths can carry it"
    for words, chosen in (
        ("cannot carry it", pl.col("share") < _LEAST_SHARE),
        ("what they work on is not known", pl.col("share").is_null()),
    ):
        names = table.filter(chosen)["what"].unique(maintain_order=True).to_list()
        if names:
            yield f"{words}: {', '.join(names[:8])}{f' and {len(names) - 8} more' if len(names) > 8 else ''}"
