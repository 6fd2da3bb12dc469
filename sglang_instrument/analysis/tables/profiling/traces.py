"""What the traces of the engines' profilers show: ranks, kernels, idle times, steps of a run beside them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sglang_instrument.analysis.tables.column import Column
from sglang_instrument.analysis.tables.shared import VALIDATE
from sglang_instrument.analysis.tables.table import Table
from sglang_instrument.kernel_names import cut_in_the_middle, readable_name

_COMMANDS: Final = ("trace",)


def _rank(row: Mapping[str, Any]) -> str:
    """Return the engine, if there are several, the rank and the stage."""
    return " ".join(filter(None, (row["engine"] if row.get("several") else "", row["rank"], row["stage"])))


def _named(name: str, meaning: str, title: str) -> Column:
    """Return a column of what the CPU did; operators have names of hundreds of characters."""
    return Column(
        name, meaning, cell=lambda row: cut_in_the_middle(row[name] or "nothing recorded"), title=title
    )


def _table(name: str, row: str, *columns: Column) -> Table:
    return Table(name, row, columns, _COMMANDS)


_SHARE: Final = Column("share", "of the GPU's busy time", "share")
_COUNT: Final = Column("count", "how many", "count")
_TOTAL: Final = Column("total_sec", "sum of their durations", "time")
_MEAN: Final = Column("mean_us", "mean duration in microseconds", "number", title="mean us")
_MAX: Final = Column("max_us", "the longest in microseconds", "number", title="max us", terminal=False)
_STAGE: Final = Column("stage", "prefill or decode; null where it is not known")


def _ms(name: str, meaning: str) -> Column:
    return Column(name, f"{meaning}, in milliseconds", "number")


#: How the time of a trace was used.
USE: Final = (
    Column(
        "busy_share",
        "share of it in which the GPU (without one, the engine) was at work",
        "share",
        title="busy",
        formerly="busy",
    ),
    Column("busy_sec", "the same in seconds", "time", terminal=False),
    Column("idle_sec", "the rest of it", "time", terminal=False),
    Column("compute_sec", "GPU time in kernels that compute", "time", optional=True),
    Column("communication_sec", "GPU time in kernels that communicate", "time", gives_way=1, optional=True),
    Column(
        "communication_alone_sec",
        "of it, time in which no kernel computed",
        "time",
        optional=True,
        formerly="exposed_sec",
        former_title="exposed",
    ),
    Column("copy_sec", "GPU time in copies and memsets", "time", terminal=False, optional=True),
    Column(
        "communication_share",
        "share of communication in the busy time",
        "share",
        terminal=False,
        optional=True,
        formerly="communication",
    ),
    Column(
        "communication_alone_share",
        "share of the busy time in which only communication ran",
        "share",
        terminal=False,
        optional=True,
        formerly="exposed",
    ),
)
RANKS: Final = _table(
    "trace_ranks",
    "a trace; times of a GPU are there if it has one",
    Column("engine", "what the names of one capture's files begin with", terminal=False),
    Column("rank", "the rank; a terminal adds the engine, if there are several, and the stage", cell=_rank),
    Column("stage", "prefill or decode, if the file holds only one of them", terminal=False),
    Column("window_sec", "the time that the trace covers", "time"),
    *USE,
)
CATEGORIES: Final = _table(
    "trace_categories",
    "a kind of work of the GPU",
    Column("category", "a kind of kernel or copy"),
    _SHARE,
    _COUNT,
    _TOTAL,
    Column("mean_us", _MEAN.meaning, "number", terminal=False),
    _MAX,
)
KERNELS: Final = _table(
    "trace_kernels",
    "a kernel, the longest sum first",
    Column(
        "name",
        "its name; a terminal shows its operator and leaves out arguments",
        cell=lambda row: readable_name(row["name"]),
        title="kernel",
    ),
    Column("category", "its kind", gives_way=1),
    _SHARE,
    _COUNT,
    _TOTAL,
    _MEAN,
    _MAX,
)
STAGES: Final = _table(
    "trace_stages",
    "prefill or decode",
    _STAGE,
    Column("steps", "batches that the engine ran", "count"),
    Column("step_sec", "their time on the CPU", "time", title="on CPU"),
    _ms("p50_ms", "half of them took at most this long"),
    _ms("p99_ms", "99 % of them took at most this long"),
    Column("gpu_sec", "GPU time of what they launched", "time", title="on GPU"),
    Column("gpu_share", "share of the GPU's busy time", "share", title="of GPU"),
)
GAPS: Final = _table(
    "trace_gaps",
    "a time in which nothing ran on the GPU (without one, in the engine), the longest first",
    _named("cpu", "the CPU work that covers most of it; null if none covers a twentieth", "on the CPU"),
    Column("at_sec", "its begin, after that of the trace", "time"),
    Column("duration_sec", "for how long no GPU stream worked", "time", title="idle"),
    Column(
        "covered_share",
        "share of it that the CPU work covers",
        "share",
        formerly="covered",
        former_title="covers",
    ),
)
GAP_SIZES: Final = _table(
    "trace_gap_sizes",
    "idle times of similar length",
    Column("size", "from this to that long", title="length"),
    _COUNT,
    _TOTAL,
)
GRAPHS: Final = _table(
    "trace_graphs",
    "a stage in which CUDA graphs were launched",
    _STAGE,
    Column("launches", "how many", "count"),
    Column(
        "launch_p50_us",
        "half of the launches took at most this long, in microseconds",
        "number",
        title="launch p50 us",
    ),
    _ms("gpu_p50_ms", "half of the graphs ran at most this long"),
    _ms("gpu_p99_ms", "99 % of the graphs ran at most this long"),
    _ms("every_p50_ms", "half of the launches follow within this time"),
    _ms("every_p99_ms", "99 % of the launches follow within this time"),
)
STREAMS: Final = _table(
    "trace_streams",
    "a stream of CUDA",
    Column("stream", "its number", "id"),
    Column("device", "the GPU", "id"),
    _COUNT,
    Column("busy_sec", "time in which it was at work", "time"),
)
COPIES: Final = _table(
    "trace_copies",
    "copies of one kind",
    _named("name", "from where to where", "copy"),
    _COUNT,
    _TOTAL,
    Column("bytes", "of all", "bytes"),
    Column("gb_per_sec", "gigabytes a second; null where not known", "number", title="GB/s"),
)
OPERATORS: Final = _table(
    "trace_operators",
    "an operator on the CPU, the longest own time first; a terminal shows it where there is no GPU",
    _named("name", "its name; a terminal shows its operator and leaves out arguments", "operator"),
    Column("kind", "operator, annotation or call of the GPU's runtime", terminal=False),
    _COUNT,
    Column(
        "without_nested_sec",
        "its time without that of the operators inside",
        "time",
        formerly="self_sec",
        former_title="own",
    ),
    _TOTAL,
)
IDLE_IN_STEPS: Final = _table(
    "trace_steps",
    "a step of the run (--run) during a trace; a terminal prints a sentence",
    Column("rank", "of the trace"),
    Column("step", "the training step", "id"),
    VALIDATE,
    Column("worker", "the worker of the step", "id"),
    Column("overlap_sec", "for how long trace and step overlap", "time"),
    Column("idle_share", "share of it in which the GPU, or the engine, was idle", "share", formerly="idle"),
    Column("requests", "how many requests, on average, did what while it was idle", "object"),
    Column("sentence", "the same in words"),
)
