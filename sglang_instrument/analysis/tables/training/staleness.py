"""Samples of asynchronous training: how stale they are when the trainer takes them, and what waits for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sglang_instrument.analysis.tables.column import Column
from sglang_instrument.analysis.tables.table import Table


def _of_step(row: Mapping[str, Any]) -> str:
    return f"{row['group']}, step {row['step']}"


_STEP: Final = Column("step", "the trainer's step", "id")
_OF_SAMPLES: Final = (
    Column("samples", "samples that it took", "count"),
    Column("known", "those with a known staleness", "count", terminal=False),
    Column("version", "version of the trainer's weights then", "count", gives_way=4),
    Column("mean", "versions from the beginning of a sample to its use, in the mean", "number"),
    Column("p50", "half of the samples are at most so many versions old", "number", terminal=False),
    Column("p99", "99 % of the samples are at most so many versions old", "number", gives_way=3),
    Column("max", "versions of the stalest sample", "count"),
    Column("max_staleness", "versions that the trainer allows", "count", terminal=False),
    Column(
        "over_limit",
        "samples that are staler than the trainer allows",
        "count",
        formerly="over",
        former_title="over",
    ),
    Column(
        "mixed_share",
        "share of samples whose weights changed while they were made",
        "share",
        gives_way=2,
        title="mixed weights",
        formerly="mixed",
        former_title="mixed",
    ),
    Column("waited_sec", "from the end of a sample to its use, in the mean", "time"),
    Column(
        "ahead",
        "samples whose versions are newer than the trainer's",
        "count",
        terminal=False,
    ),
)
STALENESS: Final = Table(
    name="staleness",
    row="a step of the trainer; staleness is counted in versions of the weights",
    commands=("staleness",),
    columns=(
        _STEP,
        *_OF_SAMPLES,
        Column("at_us", "when the step took its first sample", "moment", terminal=False),
        Column("in_flight", "requests that ran when the step took its first sample", "count"),
        Column("queued", "of these, requests without an engine call yet", "count", gives_way=1),
        Column("waiting", "samples that were done then, and not taken yet", "count"),
    ),
)
STALENESS_BY_WORKER: Final = Table(
    name="staleness_by_worker",
    row="a step of the trainer and a worker that made its samples",
    commands=("staleness",),
    option="--by-worker",
    columns=(Column("worker", "the worker that made the samples", "id"), _STEP, *_OF_SAMPLES),
)
GROUPS: Final = Table(
    name="groups",
    row="a group of samples, the longest wait for its slowest first",
    commands=("staleness",),
    option="--groups",
    columns=(
        Column("group", "the prompt's group; a terminal adds its step", cell=_of_step),
        Column(
            "step",
            "the step that took it, or made it if none took it",
            "id",
            terminal=False,
        ),
        Column("samples", "how many samples it has", "count"),
        Column(
            "wait_sec",
            "from the median end of the others to the end of the slowest",
            "time",
            former_title="waits",
        ),
        Column("versions", "versions that passed for the others meanwhile, in the mean", "number"),
        Column("slowest", "the request that ended last"),
        Column("worker", "its worker", "id", terminal=False),
        Column("duration_sec", "its duration", "time", former_title="took"),
        Column("fate", "what became of most of its samples", terminal=False),
    ),
)
FATES: Final = Table(
    name="fates",
    row="what became of samples; only --json has it",
    commands=("staleness",),
    columns=(
        Column("fate", "used, waiting, unknown, or the reason why they were thrown away"),
        Column("samples", "how many", "count"),
    ),
)
