"""Say in one sentence what was wrong with a run, if anything was, and on what evidence.

Chance is no finding: reply lengths are random, and some worker always draws the longest. So findings rest on
measures that do not depend on lengths: seconds per token, seconds per reward, requests that stand still, a
blocked event loop. Each is compared with all other steps of all workers, by the median and the spread around
it.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from sglang_instrument.analysis.answers.gaps import loop_blocks, plateaus, standstill
from sglang_instrument.analysis.answers.steps import step_table, worker_steps
from sglang_instrument.analysis.answers.workers import barrier_table
from sglang_instrument.analysis.reading.files import File
from sglang_instrument.analysis.run.digest import Digest
from sglang_instrument.analysis.verdict.deaths import UnfinishedStep, unfinished_steps
from sglang_instrument.analysis.verdict.hangs import find_hangs
from sglang_instrument.analysis.verdict.outliers import rates, slow_groups, slow_single

if TYPE_CHECKING:
    from sglang_instrument.analysis.run.opening import Run

_OF_STEP: Final = 0.05  # a smaller share of the step is not worth a finding
_LEAST_SEC: Final = 0.5  # nor is a shorter time
_STILL: Final = 2.0  # times the usual seconds per token
_STARVED: Final = 1.5  # times the next longest, after subtracting the time in which the loop was blocked
_CAUSES: Final = {
    "engine": "straggler",
    "reward": "slow_reward",
    "tool": "slow_tool",
    "interaction": "slow_interaction",
}
_OF_WORKER: Final = ["step", "validate", "worker"]


@dataclass(frozen=True)
class Finding:
    """A cause that the verdict names.

    Attributes:
        cause: plateau, straggler, slow_tool, slow_reward, slow_interaction, blocked_loop, hang, or death.
        step, validate, worker: Where it happened.
        lost_sec: About how much time the step lost by it.
        sentence: The finding in words.
        evidence: The numbers behind it.
    """

    cause: str
    step: int
    validate: bool
    worker: int
    lost_sec: float
    sentence: str
    evidence: dict[str, Any] = field(default_factory=dict)


def findings_of(run: "Run", over: bool | None = None) -> list[Finding]:
    """Return everything out of the ordinary in a run: hangs and deaths first, then by the time lost.

    Args:
        run: The run.
        over: Whether the run is over, default `run.is_over`; in a run that goes on, no worker counts as dead.
    """
    over = run.is_over if over is None else over
    digest, files = run.digest.of_workers(), run.files
    found = [
        *_standstills(digest),
        *_slow_work(digest),
        *_slow_singles(digest, files),
        *_blocks(digest, files),
    ]
    hangs = _hangs(digest, files)
    # Workers at a barrier wait for the one that hangs or died; name them only if there is no such worker.
    ended = [one for one in hangs if not one.evidence["waits"]]
    ended = ended or (_deaths(digest, files) if over else []) or _waited_for(digest, hangs)
    return [*ended, *sorted(found, key=lambda one: -one.lost_sec)]


def verdict_of(run: "Run", over: bool | None = None) -> str:
    """Return one sentence: what cost most time, or that nothing is out of the ordinary.

    Args:
        run: The run.
        over: As in `findings_of`.
    """
    over = run.is_over if over is None else over
    digest, files = run.digest, run.files
    found = findings_of(run, over)
    if found:
        more = f" ({len(found) - 1} more findings)" if len(found) > 1 else ""
        return found[0].sentence + more
    ended = [one for one in unfinished_steps(digest, files) if one.worker is None] if over else []
    if ended:
        step = f"{'validation' if ended[0].validate else 'step'} {ended[0].step}"
        words = f"the run ended in {step}, and the log does not show which worker was the cause"
        return f"{words}: none stopped logging long before the others{_absent(digest.of_workers(), ended[0])}"
    steps = step_table(digest.filter(~pl.col("validate")))
    if steps.is_empty():
        return "no training step is complete yet"
    slowest = steps.sort("duration_sec").row(-1, named=True)
    longest = slowest["max_sec"]
    words = f"nothing out of the ordinary; the slowest step is {slowest['step']}, "
    words += _seconds(slowest["duration_sec"])
    return words if longest is None else f"{words}, of which the longest request took {_seconds(longest)}"


def _absent(digest: Digest, unfinished: UnfinishedStep) -> str:
    """Return a clause that names workers without any record in the step that never ended."""
    known = set(digest.steps.filter(validate=unfinished.validate)["worker"].drop_nulls())
    absent = sorted(known - unfinished.done.keys())
    if not absent:
        return ""
    kind = "worker" if len(absent) == 1 else "workers"
    return f"; {kind} {', '.join(map(str, absent))} wrote nothing in it"


def _seconds(duration_sec: float) -> str:
    return f"{duration_sec:.0f} s" if duration_sec >= 10 else f"{duration_sec:.3g} s"


def _standstills(digest: Digest) -> list[Finding]:
    rows = plateaus(digest)
    late = {} if rows.is_empty() else _lateness(digest)
    found = []
    for row in rows.iter_rows(named=True):
        doing = standstill(digest, row)
        if doing["slowdown"] is not None and doing["slowdown"] < _STILL:
            continue  # long replies, none of which happened to end for a while
        lost = row["to_sec"] - doing["since_sec"]
        came = late.get((row["step"], row["validate"], row["worker"]), 0.0)
        where = _name(row) + (f" arrived {came:.0f} s late" if came > 1 else "")
        sentence = (
            f"{where}; {row['stuck']} of its {row['requests']} requests stood still "
            f"from {doing['since_sec']:.0f} s to {row['to_sec']:.0f} s"
        )
        if doing["turn"] is not None:
            sentence += f", in turn {doing['turn'] + 1} ({doing['event']})"
        found.append(Finding("plateau", *_place(row), lost, sentence, {**row, **doing, "late_sec": came}))
    return found


def _lateness(digest: Digest) -> dict[tuple[int, bool, int], float]:
    """Return by how much the last worker at each barrier was later than the one before, summed by step."""
    table = barrier_table(digest).filter(pl.col("gain_alone_sec") > 0)
    sums = table.group_by(_OF_WORKER).agg(pl.col("gain_alone_sec").sum())
    return {(step, validate, worker): late for step, validate, worker, late in sums.iter_rows()}


def _slow_work(digest: Digest) -> list[Finding]:
    """Find steps of workers whose engine, tools, rewards or interactions were far slower than usual."""
    steps = worker_steps(digest).select(*_OF_WORKER, step_sec="duration_sec")
    found = []
    for kind, cause in _CAUSES.items():
        slow = slow_groups(rates(digest, kind)).join(steps, on=_OF_WORKER, maintain_order="left")
        for row in slow.iter_rows(named=True):
            lost = row["longest_sec"] * (1 - 1 / row["times"])
            if _is_worth_it(lost, row["step_sec"]):
                unit = {"engine": "token", "tool": "turn"}.get(kind, "request")  # as in rates()
                sentence = (
                    f"{_name(row)} took {row['times']:.1f} times the usual {kind} time per {unit}; "
                    f"about {lost:.0f} s lost"
                )
                found.append(Finding(cause, *_place(row), lost, sentence, row))
    return found


def _slow_singles(digest: Digest, files: list[File]) -> list[Finding]:
    """Find the one tool, reward or interaction that took far longer than all others."""
    steps = worker_steps(digest).select(*_OF_WORKER, step_sec="duration_sec")
    blocks = _loop_blocks(digest, files)
    found = []
    for kind, cause in _CAUSES.items():
        pieces = digest.requests if kind == "reward" else digest.turns
        spent = pl.col(f"{kind}_sec")
        row = slow_single(pieces.filter(spent > 0).with_columns(spent=spent)) if kind != "engine" else None
        if row is None:
            continue
        same = [pl.col(name) == row[name] for name in _OF_WORKER]
        blocked_sec: Any = blocks.filter(*same)["blocked_sec"].max() or 0.0
        if row["spent"] - blocked_sec < _STARVED * row["next_sec"]:
            continue  # it only waited while other code blocked the event loop
        if _is_worth_it(row["spent"] - row["next_sec"], float(steps.filter(*same)["step_sec"].sum())):
            lost = _lost_by(digest, row)
            cost = f"about {lost:.1f} s lost" if lost > 0.05 else "other requests took even longer"
            sentence = (
                f"{_name(row)}: one {kind} took {row['spent']:.1f} s, {row['times']:.0f} times the next "
                f"longest (request {row['request_id']}); {cost}"
            )
            evidence = {name: row[name] for name in ("request_id", "spent", "next_sec", "times")}
            found.append(Finding(cause, *_place(row), lost, sentence, evidence))
    return found


def _lost_by(digest: Digest, row: dict[str, Any]) -> float:
    """Return how much earlier a worker's last request would have ended without a piece of work."""
    same = [pl.col(name) == row[name] for name in _OF_WORKER]
    ends = digest.requests.filter(*same).select("request_id", "end_us")
    mine = pl.col("request_id") == row["request_id"]
    without = pl.col("end_us") - pl.when(mine).then(int((row["spent"] - row["next_sec"]) * 1e6)).otherwise(0)
    last, sooner = ends.select(pl.col("end_us").max(), without.max().alias("without")).row(0)
    return 0.0 if last is None else float(last - sooner) / 1e6


def _is_worth_it(lost_sec: float, step_sec: float) -> bool:
    return lost_sec > max(_LEAST_SEC, _OF_STEP * step_sec)


def _blocks(digest: Digest, files: list[File]) -> list[Finding]:
    """Find steps in which the event loop was blocked for a large part of the time."""
    steps = worker_steps(digest).select(*_OF_WORKER, step_sec="duration_sec")
    blocks = (
        _loop_blocks(digest, files)
        .group_by(_OF_WORKER, maintain_order=True)
        .agg(
            blocked_sec=pl.col("blocked_sec").sum(),
            times=pl.len(),
            culprit=pl.col("culprit").first(),
            in_span=pl.col("in_span").first(),
        )
    )
    found = []
    for row in blocks.join(steps, on=_OF_WORKER).iter_rows(named=True):
        if _is_worth_it(row["blocked_sec"], row["step_sec"]):
            by = row["culprit"] or row["in_span"]
            sentence = f"{_name(row)} had its event loop blocked for {row['blocked_sec']:.1f} s"
            sentence += f" by {by}" if by else ""
            found.append(Finding("blocked_loop", *_place(row), row["blocked_sec"], sentence, row))
    return found


def _loop_blocks(digest: Digest, files: list[File]) -> pl.DataFrame:
    """Return the blocks of the digest's own workers: a trainer may have the same number."""
    return loop_blocks(files).join(digest.steps, on=["role", *_OF_WORKER], how="semi", maintain_order="left")


def _hangs(digest: Digest, files: list[File]) -> list[Finding]:
    """Find steps that never ended, with spans open for longer than any before.

    Workers that wait at a barrier, for one that hangs elsewhere or died, come last.
    """
    found = []
    for hang in sorted(find_hangs(digest, files), key=lambda one: one.waits):
        place = hang.file.place
        if place is None or place.step is None:
            continue
        inner, oldest = hang.spans[0], float(hang.spans[-1].get("age_sec") or 0.0)
        row = {"step": place.step, "validate": place.validate, "worker": place.worker}
        asked = f" of request {inner['request_id']}" if inner.get("request_id") else ""
        sentence = f"{_name(row)} never ended; {inner.get('event')}{asked} was open for {oldest:.0f} s"
        evidence = {"spans": hang.spans, "waits": hang.waits, **row}
        found.append(Finding("hang", *_place(row), oldest, sentence, evidence))
    return found


def _waited_for(digest: Digest, waits: list[Finding]) -> list[Finding]:
    """Return the workers for which others wait; if no worker is missing, those that wait."""
    waiting: dict[tuple[int, bool], list[Finding]] = {}
    for one in waits:
        waiting.setdefault((one.step, one.validate), []).append(one)
    found = []
    for (step, validate), there in waiting.items():
        everyone = set(digest.steps.filter(step=step, validate=validate)["worker"])
        row: dict[str, Any] = {"step": step, "validate": validate}
        for worker in sorted(everyone - {one.worker for one in there}):
            lost = max(one.lost_sec for one in there)
            others = "another worker" if len(there) == 1 else f"{len(there)} other workers"
            row["worker"] = worker
            sentence = f"{_name(row)} kept {others} waiting; after {lost:.0f} s the step had not ended"
            spans = [span for one in there for span in one.evidence["spans"]]
            evidence = {"spans": spans, "waits": False, **row}
            found.append(Finding("hang", step, validate, worker, lost, sentence, evidence))
    return found or waits


def _deaths(digest: Digest, files: list[File]) -> list[Finding]:
    """Find the worker that stopped logging first in the step in which a run ended."""
    found = []
    for one in unfinished_steps(digest, files):
        if one.worker is None:
            continue
        row: dict[str, Any] = {"step": one.step, "validate": one.validate, "worker": one.worker}
        workers = [
            {"worker": worker, "requests": count, "last_us": one.last_us[worker]}
            for worker, count in one.done.items()
        ]
        sentence = f"{_name(row)} {_end_of(one, one.done[one.worker])}"
        evidence = {"ahead_sec": one.ahead_sec, "workers": workers}
        found.append(Finding("death", *_place(row), 0.0, sentence, evidence))
    return found


def _end_of(unfinished: UnfinishedStep, done: int) -> str:
    """Return the words about the worker that died in a step."""
    counts = unfinished.done.items()
    others = max((count for worker, count in counts if worker != unfinished.worker), default=0)
    if unfinished.is_alone:
        return (
            "was the only one with requests left when the run ended: "
            f"it had completed {done} requests, the others {others}"
        )
    words = "was the first to stop logging in this step, which never ended"
    if unfinished.ahead_sec is None:
        return words
    return (
        f"{words}: others logged for {unfinished.ahead_sec:.1f} s more; "
        f"it had completed {done} requests (others up to {others})"
    )


def _place(row: dict[str, Any]) -> tuple[int, bool, int]:
    return row["step"], row["validate"], row["worker"]


def _name(row: dict[str, Any]) -> str:
    kind = "validation" if row["validate"] else "step"
    return f"{kind} {row['step']}: worker {row['worker']}"
