"""Put a second run beside the first: the stories of both, what their comparison concludes, its charts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from sglang_instrument.analysis.advice.findings import findings_with_changes
from sglang_instrument.analysis.changes.compare import compare_runs
from sglang_instrument.analysis.changes.conclusion import conclusion_of
from sglang_instrument.analysis.changes.run_names import dated_names_of, names_of
from sglang_instrument.analysis.changes.why.reasons import reason_table, reason_words
from sglang_instrument.report.html.answers import comparison
from sglang_instrument.report.html.overview import Overview
from sglang_instrument.report.html.story import story

if TYPE_CHECKING:
    from sglang_instrument.analysis.run.opening import Run

_Story = dict[str, Any]


def beside(run: Run, other: Run, first_story: Mapping[str, Any]) -> tuple[_Story, dict[str, Any], list[str]]:
    """Return what a report says of a second run.

    Args:
        run: The first run, A.
        other: The second run, B.
        first_story: The story of the first.

    Returns:
        The words of the head: what the comparison concludes, and the stories of both as "runs"; the data of
        the charts; the names of both, with their dates.
    """
    compared = compare_runs(run, other)
    overview = Overview.of(other)
    verdict = replace(overview.verdict, findings=findings_with_changes(other, overview.verdict))
    stories = [dict(first_story), story(other, replace(overview, verdict=verdict))]
    runs = [
        {**run_story, "mark": mark, "title": name, "findings": _unlike(run_story, neighbour)}
        for mark, name, run_story, neighbour in zip(
            "AB", names_of(run, other), stories, reversed(stories), strict=True
        )
    ]
    reasons = reason_table(run, other, compared.steps, compared.other_steps)
    concluded = conclusion_of(compared)
    why = list(reason_words(reasons)) if concluded.outcome in ("slower", "faster") else []
    words = {**asdict(concluded), "why": why, "runs": runs, "other_logs": other.logs}
    return words, comparison(compared, other), list(dated_names_of(run, other))


def _unlike(run_story: _Story, other: _Story) -> list[dict[str, Any]]:
    """Return the findings of a run, each with whether the other run has none of its kind."""
    known = {_kind(finding) for finding in other["findings"]}
    return [{**finding, "only": _kind(finding) not in known} for finding in run_story["findings"]]


def _kind(finding: Mapping[str, Any]) -> tuple[str, str | None]:
    return finding["cause"], finding["event"]
