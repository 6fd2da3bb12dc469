"""Write the report of a run: one HTML file that needs no network and no server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import polars as pl

from sglang_instrument.analysis.advice.advise import advice_of
from sglang_instrument.analysis.advice.findings import with_changes
from sglang_instrument.analysis.answers.engine.call_times import paths_of
from sglang_instrument.analysis.answers.engine.round_trips import ahead_us
from sglang_instrument.analysis.answers.events import path_table
from sglang_instrument.analysis.answers.steps import step_table
from sglang_instrument.analysis.ledger.ledger import step_ledger
from sglang_instrument.plain_text import plain
from sglang_instrument.report.html import answers
from sglang_instrument.report.html.beside import beside
from sglang_instrument.report.html.chosen import MOST_SPANS, Chosen, choose
from sglang_instrument.report.html.grid import whatif_grid
from sglang_instrument.report.html.icicle import icicle
from sglang_instrument.report.html.overview import Overview
from sglang_instrument.report.html.page import render
from sglang_instrument.report.html.sections.asynchronous import (
    staleness_section,
    waste_section,
    weights_section,
)
from sglang_instrument.report.html.sections.both_sides import loop_section
from sglang_instrument.report.html.sections.kernels import kernel_section
from sglang_instrument.report.html.sections.levers import lever_section
from sglang_instrument.report.html.servers import gauge_facts, server_section
from sglang_instrument.report.html.slowest import slowest_requests
from sglang_instrument.report.html.spans import pack_step
from sglang_instrument.report.html.story import story
from sglang_instrument.report.palette import PART_OF_EVENT
from sglang_instrument.safe_files.output import write_output
from sglang_instrument.schema import EVENTS

if TYPE_CHECKING:
    from sglang_instrument.analysis.run.opening import Run

Stage = Callable[[str], object]


@dataclass(frozen=True)
class WrittenReport:
    """What was written: the file, its size in bytes, and the keys of the steps shown span by span."""

    path: Path
    bytes: int
    steps: list[str]


def write_report(
    run: Run,
    path: Path,
    *,
    overview: Overview | None = None,
    other: Run | None = None,
    traces: Mapping[str, Any] | None = None,
    steps: Sequence[int] = (),
    most_spans: int = MOST_SPANS,
    version: str = "",
    stage: Stage = lambda action: None,
) -> WrittenReport:
    """Write the report of a run.

    Args:
        run: The run, or the steps of it that are read in detail.
        path: The file to write.
        overview: What is known of all steps, by default of those of `run`.
        other: A second run to compare with.
        traces: What the engines' profilers recorded, as `trace --run --json` prints it.
        steps: Training steps that get a timeline; by default those with a finding, and the slowest.
        most_spans: The most spans of all timelines together; steps in `steps` always have one.
        version: Of this package, for the footer.
        stage: Called with the current action.

    Raises:
        LogError: One of `steps` does not exist.
    """
    overview = Overview.of(run) if overview is None else overview
    stage("simulating other settings")
    advice = advice_of(overview.sample, overview.verdict)
    findings = with_changes(overview.verdict.findings, advice)
    overview = replace(overview, verdict=replace(overview.verdict, findings=findings))
    ledger = step_ledger(paths_of(run))
    chosen = choose(run, step_table(run.digest), findings, steps, most_spans)
    packed: dict[str, bytes] = {}
    parts: dict[str, Any] = {}
    events: dict[str, str] = {name: kind.phase for name, kind in EVENTS.items()} | PART_OF_EVENT
    stage("aligning clocks")
    ahead = ahead_us(run)
    for step in chosen:
        stage(f"reading {'validation' if step.validate else 'step'} {step.step}")
        packed[step.key], phases = pack_step(run, step, ahead)
        events |= phases
        parts[step.key] = _parts(ledger, step)
    stage("summing up events")
    tree = icicle(path_table(run), chosen)
    stage("estimating what-if")
    grid = whatif_grid(run.digest, lambda done, total: stage(f"estimating what-if: {done} of {total}"))
    stage("splitting requests into events")
    facts = _chart_facts(run, overview, chosen)
    facts |= {"whatif": grid, "parts": parts, "events": events, "icicle": tree, "other": None, "runs": []}
    facts["rebuild"] = _rebuild(run, other, path)
    facts["whatif_command"] = plain(f"sglang-instrument whatif {quote(run.logs)}")
    words = story(run, overview)
    words |= {
        "servers": server_section(run),
        "loop": loop_section(run),
        "levers": lever_section(run, advice),
        "weights": weights_section(run),
        "staleness": staleness_section(run),
        "waste": waste_section(run),
        "gauges": bool(facts["gauges"]),
        "beside": None,
        "kernels": None if traces is None else kernel_section(traces),
    }
    if other is not None:
        stage("comparing the runs")
        words["beside"], facts["other"], facts["runs"] = beside(run, other, words)
    stage("writing the file")
    text = render(words, facts, packed, version)
    write_output(path, text.encode(errors="backslashreplace"))  # file names may not be UTF-8
    return WrittenReport(path, path.stat().st_size, list(packed))


def _rebuild(run: Run, other: Run | None, path: Path) -> str:
    """Return the command that writes this report again; `--step N` after it adds a timeline."""
    runs = [run.logs] if other is None else [run.logs, other.logs]
    names = " ".join(quote(name) for name in runs)
    return plain(f"sglang-instrument report {names} -o {quote(str(path))} --force")


def _chart_facts(run: Run, overview: Overview, chosen: Sequence[Chosen]) -> dict[str, Any]:
    """Return the data of the charts, by section."""
    findings = overview.verdict.findings
    return {
        "steps": answers.step_rows(overview.steps, findings),
        "curves": answers.curves(run.digest, chosen),
        "heat": answers.heat(run.digest),
        "cdf": answers.cdfs(run.digest, chosen),
        "slowest": slowest_requests(run),
        "turns": answers.turns(run.digest),
        "lengths": answers.lengths(run.digest, overview.lengths),
        "gaps": answers.gaps(run),
        "clocks": answers.clocks(run.digest),
        "gauges": gauge_facts(run, chosen),
        "findings": [asdict(finding) for finding in findings],
    }


def _parts(ledger: pl.DataFrame, step: Chosen) -> dict[str, Any]:
    """Return what the wall time of a step was spent on: the rows of its ledger, and their sum."""
    rows = ledger.filter(step=step.step, validate=step.validate)
    return {"sec": rows["sec"].sum(), "rows": rows.drop("step", "validate").to_dicts()}
