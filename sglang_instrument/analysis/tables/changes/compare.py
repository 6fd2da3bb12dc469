"""What differs between two runs: metrics of their steps, conditions, settings."""

from __future__ import annotations

from typing import Final

from sglang_instrument.analysis.tables.column import Column
from sglang_instrument.analysis.tables.table import Table

_RATIO: Final = Column("ratio", "mean of B by mean of A; null without both", "number", title="B / A")
_BOUNDS: Final = (
    Column(
        "ratio_at_least",
        "begin of the interval of the ratio; null with fewer than 2 steps",
        "number",
        terminal=False,
        formerly="low",
    ),
    Column("ratio_at_most", "end of the interval of the ratio", "number", terminal=False, formerly="high"),
)
_NEEDED: Final = "how many steps of each run would tell {}; null for more than 10,000"

COMPARED_METRICS: Final = Table(
    name="compared_metrics",
    row="a metric that one of the runs has",
    commands=("compare",),
    columns=(
        Column("metric", "what is compared"),
        Column("unit", "of a_mean and b_mean", terminal=False),
        Column(
            "of",
            "what A and B are counted by: a token, a turn ...",
            gives_way=2,
            json=False,
            frame=False,
        ),
        Column("steps", "how many steps are compared, of the run that has fewer", "count", terminal=False),
        Column(
            "a_mean",
            "geometric mean over the steps of A; null where it has none",
            "number",
            title="A",
            shown_as="words",
            formerly="one",
        ),
        Column(
            "b_mean",
            "geometric mean over the steps of B; null where it has none",
            "number",
            title="B",
            shown_as="words",
            formerly="other",
        ),
        _RATIO,
        Column(
            "interval",
            "of the ratio; the verdict comes from it",
            gives_way=1,
            json=False,
            frame=False,
        ),
        *_BOUNDS,
        Column(
            "verdict",
            "B is higher, lower, the same (the interval lies within 10 %), or too few steps to tell; only in "
            "A, only in B: the other run has no call of that kind",
            styles={"higher": "red", "lower": "green", "same": "dim"},
        ),
        Column(
            "steps_needed",
            _NEEDED.format("a difference of 10 % in 4 of 5 cases"),
            "count",
            gives_way=3,
            shown_as="words",
            formerly="needed",
        ),
    ),
)
COMPARED_CONDITIONS: Final = Table(
    name="compared_conditions",
    row="a condition; only --json has it, a terminal prints a sentence each",
    commands=("compare",),
    option="--fail-if",
    columns=(
        Column("condition", "METRIC > Nx, or <", terminal=False),
        Column("outcome", "holds, does not hold, too few steps, not measured", terminal=False),
        Column("ratio", _RATIO.meaning, "number", terminal=False),
        *_BOUNDS,
        Column("steps_needed", _NEEDED.format("it"), "count", terminal=False, formerly="needed"),
    ),
)
CHANGED_PARTS: Final = Table(
    name="changed_parts",
    row="a part of a step, those that changed most first; a terminal prints the largest in a sentence",
    commands=("compare",),
    columns=(
        Column(
            "part",
            "of the ledger; the engine's calls are queue, prefill and decode, where known",
            terminal=False,
        ),
        Column("a_sec", "mean seconds of a step of A", "time", terminal=False),
        Column("b_sec", "the same of B", "time", terminal=False),
        Column("change_sec", "B less A", "time", terminal=False),
    ),
)
REASONS: Final = Table(
    name="reasons",
    row="a difference of lengths, settings, versions, machines or hosts; those that can carry most first",
    commands=("compare",),
    columns=(
        Column("kind", "lengths, setting, version, machine or hosts", terminal=False),
        Column("what", "its name", terminal=False),
        Column("a", "in A, in words", terminal=False),
        Column("b", "in B", terminal=False),
        Column("works_on", "the parts of a step that it works on; nothing; not known", terminal=False),
        Column(
            "sec",
            "the most seconds of the difference of a step that it can carry; negative where B is faster; "
            "null where not known. Several can carry the same seconds",
            "number",
            terminal=False,
        ),
        Column("share", "of the difference of a step", "share", terminal=False),
        Column("sentence", "the same in words", terminal=False),
    ),
)
DIFFERING_SETTINGS: Final = Table(
    name="differing_settings",
    row="a setting that differs",
    commands=("compare",),
    columns=(
        Column(
            "roles",
            "the roles of the processes that have the setting",
            "list",
            gives_way=1,
            former_title="processes",
        ),
        Column("setting", "what holds it, and its name in there", json=False, frame=False),
        Column("source", "what holds it: server_args, config, machine ...", terminal=False),
        Column("name", "its name in there", terminal=False),
        Column(
            "a",
            "its values in A, several where the processes differ; none where A has no such setting",
            "list",
            title="A",
        ),
        Column("b", "the same of B", "list", title="B"),
    ),
)
