"""Arrange the paths of events into one tree, with the times of the run, of steps and of their workers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.run.event_paths import SEPARATOR
from sglang_instrument.report.html.chosen import Chosen
from sglang_instrument.report.palette import COLOURED, PART_OF_EVENT

#: So many paths are boxes of their own; the others are summed up in a box below what they have in common.
_MOST_PATHS: Final = 250
_REST: Final = "(other events)"
_MOST_ROWS: Final = 40_000  # a row is a path of a worker of a step; with more, fewer workers have their own
_MOST_WORKERS: Final = 64
_RUN: Final = ""  # the key of the run in `views`
_SUMS: Final = ("count", "total_sec", "without_nested_sec", "steps_sec")

_Path = tuple[str, ...]


def icicle(table: pl.DataFrame, chosen: Sequence[Chosen]) -> dict[str, Any]:
    """Return the tree, and the times of its nodes.

    Args:
        table: As `path_table` returns it.
        chosen: The steps with times of their own.

    Returns:
        `event`, `phase`, `parent`: of each node; a root has the parent -1, and parents stand before their
        children. `views`: for each step's key, and for "", which is all training steps: a list with the sums
        over all workers, whose `worker` is None, and those of each worker. They hold `node`, the numbers of
        the nodes, and for each `count`, `total_sec`, `without_nested_sec` and `steps_sec`, as in the table.
    """
    table, paths = _bounded(table)
    texts = [SEPARATOR.join(path) for path in paths]
    nodes = {path: node for node, path in enumerate(paths)}
    table = table.join(_numbered(texts), on="path")
    parts = {step.key: table.filter(step=step.step, validate=step.validate) for step in chosen}
    parts[_RUN] = table.filter(~pl.col("validate"))
    most = min(_MOST_WORKERS, _MOST_ROWS // max(1, len(paths) * len(parts)))
    phases = dict(table.select("path", "phase").unique("path").iter_rows())
    return {
        "event": [path[-1] for path in paths],
        "phase": [
            COLOURED.index(PART_OF_EVENT.get(path[-1], phases.get(text) or "other"))
            for path, text in zip(paths, texts, strict=True)
        ],
        "parent": [nodes.get(path[:-1], -1) for path in paths],
        "views": {key: _views(part, most) for key, part in parts.items()},
    }


def _numbered(texts: list[str]) -> pl.DataFrame:
    nodes = range(len(texts))
    return pl.DataFrame({"path": texts, "node": nodes}, schema={"path": pl.String, "node": pl.Int64})


def _views(rows: pl.DataFrame, most_workers: int) -> list[dict[str, Any]]:
    """Return the sums over all workers, and, where there are several, those of each of the first ones."""
    workers = rows["worker"].unique().sort().to_list()
    shown = workers[:most_workers] if len(workers) > 1 else []
    return [_sums(rows, None), *(_sums(rows.filter(worker=worker), worker) for worker in shown)]


def _sums(rows: pl.DataFrame, worker: int | None) -> dict[str, Any]:
    sums = rows.group_by("node").agg(pl.col(_SUMS).sum()).sort("node")
    return {"worker": worker, **{name: sums[name].round(6).to_list() for name in ("node", *_SUMS)}}


def _bounded(table: pl.DataFrame) -> tuple[pl.DataFrame, list[_Path]]:
    """Return the table with short paths summed up, and its paths, parents first."""
    sums = table.group_by("path").agg(pl.col("steps_sec", "without_nested_sec").sum()).sort("path")
    known = {tuple(path.split(SEPARATOR)): tuple(times) for path, *times in sums.iter_rows()}
    longest = _longest(known)
    if len(longest) < len(known):
        renamed = {SEPARATOR.join(path): SEPARATOR.join(_kept_path(path, longest)) for path in known}
        short = pl.col("path").replace_strict(renamed)
        table = table.with_columns(path=short, phase=pl.when(short == pl.col("path")).then("phase"))
    paths = map(tuple, table["path"].unique().str.split(SEPARATOR))
    return table, sorted({above for path in paths for above in _with_parents(path)})


def _longest(known: dict[_Path, tuple[float, float]]) -> set[_Path]:
    """Return the paths with the most time, nested time included; with a path, all above it are among them."""
    whole = [max(sum(times), 1e-9) for times in zip(*known.values(), strict=True)]
    shares: dict[_Path, list[float]] = {}
    for path, times in known.items():
        for above in _with_parents(path):
            times_of_path = shares.setdefault(above, [0.0, 0.0])
            times_of_path[:] = [
                share + sec / of for share, sec, of in zip(times_of_path, times, whole, strict=True)
            ]
    return set(sorted(shares, key=lambda path: (-max(shares[path]), len(path)))[:_MOST_PATHS])


def _kept_path(path: _Path, longest: set[_Path]) -> _Path:
    """Return the path itself, or that of the box below its longest part that is kept."""
    if path in longest:
        return path
    return (*max(filter(longest.__contains__, _with_parents(path)), default=()), _REST)


def _with_parents(path: _Path) -> Iterable[_Path]:
    return (path[:length] for length in range(1, len(path) + 1))
