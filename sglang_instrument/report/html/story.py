"""Collect the head of the report: the verdict, its reason, the run, the cost of recording."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from sglang_instrument.analysis.advice.findings import first_change
from sglang_instrument.analysis.answers.engine.call_times import paths_of
from sglang_instrument.analysis.answers.workers import chain_of
from sglang_instrument.analysis.reading.processes import read_process
from sglang_instrument.errors import LogError
from sglang_instrument.report.html.chosen import Chosen
from sglang_instrument.whole_commands import words_and_commands

if TYPE_CHECKING:
    from sglang_instrument.analysis.run.opening import Run
    from sglang_instrument.analysis.verdict.evidence.finding import Finding
    from sglang_instrument.report.html.overview import Overview

_MOST_FINDINGS: Final = 8
_MOST_HOSTS: Final = 4
_LEAST_LINK: Final = 0.02  # share of the time before a barrier from which on a part is shown
_SPAN_US: Final = 0.44  # time of the thread that ends a span, in pure Python; see benchmarks/results.md


def story(run: Run, overview: Overview) -> dict[str, Any]:
    """Return the texts and numbers of the head of the report.

    Args:
        run: The run, or the steps of it that are read in detail.
        overview: What is known of all its steps.
    """
    steps, verdict = overview.steps, overview.verdict
    findings = verdict.findings
    training = steps.filter(~pl.col("validate"))
    processes = _processes(run.home)
    return {
        "title": run.folder.name,
        "folder": overview.name,
        "clean": verdict.calm,
        "verdict": verdict.sentence,
        "advice": words_and_commands(verdict.advice),
        "change": first_change(findings),
        "findings": [
            {**asdict(finding), "key": _where(finding)} for finding in findings[: _MOST_FINDINGS + 1]
        ],
        "of_findings": len(findings),
        "all_findings": f"sglang-instrument summary {quote(run.logs)} --json",
        "chain": _chain(run, training, findings),
        "figures": _figures(run, overview, training),
        "cost": _cost(overview, training),
        "health": asdict(overview.health),
        "health_sentence": overview.health.sentence(),
        "processes": processes,
        "ran": _ran(run, steps, processes),
        "in_detail": overview.in_detail,
    }


def _ran(run: Run, steps: pl.DataFrame, processes: Sequence[dict[str, Any]]) -> list[str]:
    """Return when and where the run ran, and under which versions, as far as its log tells."""
    end_us = pl.col("start_us") + pl.col("duration_sec").fill_null(0.0) * 1e6
    hosts_of_logs = {control.extra.host for file in run.files for control in file.controls}
    hosts = sorted(filter(None, hosts_of_logs | {process.get("host") for process in processes}))
    versions: dict[str, set[str]] = {}
    for process in processes:
        for name, version in process.get("versions", {}).items():
            versions.setdefault(name, set()).add(version)
    return [
        _from_to(steps["start_us"].min(), steps.select(end_us.max()).item()) if len(steps) else "no step yet",
        _few(hosts) or "the log does not name its host",
        *(f"{name} {', '.join(sorted(values))}" for name, values in sorted(versions.items())),
    ]


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_HOSTS} more hosts" if len(names) > _MOST_HOSTS else ""
    return ", ".join(names[:_MOST_HOSTS]) + more


def _from_to(from_us: Any, to_us: Any) -> str:
    """Return a time range in UTC, the date of its end only where it is another one."""
    begun, ended = (datetime.fromtimestamp(time_us / 1e6, timezone.utc) for time_us in (from_us, to_us))
    until = ended.strftime("%H:%M" if ended.date() == begun.date() else "%Y-%m-%d %H:%M")
    return f"{begun:%Y-%m-%d %H:%M} to {until} UTC"


def _where(finding: Finding) -> str | None:
    """Return the step of a finding as links name it; None if it concerns the run."""
    return None if finding.step is None else Chosen(finding.validate, finding.step).key


def _chain(run: Run, training: pl.DataFrame, findings: Sequence[Finding]) -> dict[str, Any] | None:
    """Return why the barrier of the first finding's step, or else of the slowest step, took so long."""
    if findings and findings[0].step is not None:
        step, validate = findings[0].step, findings[0].validate
    elif not training.is_empty():
        step, validate = training.sort("duration_sec", nulls_last=True)["step"][-1], False
    else:
        return None
    chain = chain_of(paths_of(run), step, validate)
    if chain is None:
        return None
    long = [asdict(link) for link in chain.links if link.sec >= _LEAST_LINK * chain.sec]
    return {**asdict(chain), "links": long, "key": Chosen(validate, step).key}


def _figures(run: Run, overview: Overview, training: pl.DataFrame) -> dict[str, Any]:
    durations = training["duration_sec"].drop_nulls()
    slowest = training.sort("duration_sec", nulls_last=True).tail(1).to_dicts()
    median: Any = durations.median()
    tokens: Any = training["response_tokens"].sum() if training["response_tokens"].count() else None
    requests = run.digest.of_workers().requests.filter(validate=False)["duration_sec"]
    return {
        "steps": len(training),
        "validations": len(overview.steps) - len(training),
        "workers": overview.workers,
        "requests": training["requests"].sum(),
        "tokens": tokens,
        "tokens_per_sec": tokens / float(durations.sum()) if tokens and durations.sum() else None,
        "p50_sec": requests.quantile(0.5, "linear"),
        "p99_sec": requests.quantile(0.99, "linear"),
        "median_sec": median,
        "slowest": slowest[0] if slowest else None,
        "times": slowest[0]["duration_sec"] / median if slowest and median else None,
    }


def _cost(overview: Overview, training: pl.DataFrame) -> dict[str, Any]:
    """Return how much was written, and an estimate of the time that it took."""
    seconds = float((training["duration_sec"] * training["workers"]).sum())
    records = overview.health.records
    return {
        "records": records,
        "bytes": overview.bytes,
        "per_sec": records / seconds if seconds else None,
        "span_us": _SPAN_US,
        "share": records * _SPAN_US / 1e6 / seconds if seconds else None,
        "dropped": overview.health.dropped,
    }


def _processes(folder: Path) -> list[dict[str, Any]]:
    """Return the self-description of each process; one that cannot be read is listed as such."""
    rows = []
    for path in sorted((folder / "processes").glob("[!.]*.json")):
        try:
            facts = read_process(path)
            patches = facts.get("patches") or []
            rows.append(
                {
                    "name": path.stem,
                    "host": facts.get("host"),
                    "pid": facts.get("pid"),
                    "versions": facts.get("versions") or {},
                    "found": sum(patch.get("state") == "found" for patch in patches),
                    "missing": [patch.get("event") for patch in patches if _lacks(patch)],
                    "dropped": (facts.get("records") or {}).get("dropped"),
                }
            )
        except LogError as error:
            rows.append({"name": path.stem, "unreadable": str(error)})
    return rows


def _lacks(patch: dict[str, Any]) -> bool:
    """Return whether an event is missing that the table expects in this version."""
    return patch.get("state") not in ("found", "pending") and bool(patch.get("expected", True))
