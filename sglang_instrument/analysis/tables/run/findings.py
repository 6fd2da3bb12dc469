"""Findings of the verdict: what cost time, where, and what to look at next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sglang_instrument.analysis.tables.column import Column
from sglang_instrument.analysis.tables.shared import VALIDATE
from sglang_instrument.analysis.tables.table import Table

if TYPE_CHECKING:
    import polars as pl

    from sglang_instrument.analysis.run.opening import Run


def _make(run: Run) -> pl.DataFrame:
    from dataclasses import asdict

    from sglang_instrument.analysis.answers.as_json import as_json
    from sglang_instrument.analysis.verdict.verdict import findings_of

    all_findings = findings_of(run)
    return FINDINGS.of_rows(
        {**asdict(finding), "evidence": as_json(finding.evidence).decode()} for finding in all_findings
    )


FINDINGS: Final = Table(
    name="findings",
    row="a finding, the most expensive first",
    make=_make,
    is_stored=True,
    columns=(
        Column("cause", "the cause, as docs/reference/verdict.md names it"),
        Column("scope", "request, worker, step or run"),
        Column("step", "the training step", "id"),
        VALIDATE,
        Column("worker", "the worker; null where it concerns all", "id"),
        Column("request_id", "the request; null where it is none"),
        Column("event", "the event or kind of work that took the time"),
        Column("lost_sec", "how much sooner the step would have ended without it", "time"),
        Column("sentence", "the finding in words"),
        Column("advice", "what to look at next"),
        Column("evidence", "the numbers behind it", "object"),
        Column(
            "change",
            "the change of a setting that answers it, as `advise` proposes it: setting, from, to; saves_sec, "
            "low and high: seconds that a step saves, with the 80 % interval; null without a lever",
            "object",
            frame=False,
        ),
    ),
)
