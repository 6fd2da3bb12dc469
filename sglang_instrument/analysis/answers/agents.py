"""Join requests of agents that work for others into trees, and tell which decide how long a tree takes."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.answers.requests import request_table
from sglang_instrument.analysis.digests.digest import KINDS, Digest

_STEP: Final = ("step", "validate")
_US: Final = 1e-6
#: The columns of a tree that `request_table` does not have.
_OF_TREE: Final[dict[str, Any]] = {
    "tree": pl.Int64,
    "root_request": pl.String,
    "depth": pl.Int64,
    "children": pl.Int64,
    "start_sec": pl.Float64,
    "agents_sec": pl.Float64,
    "path_sec": pl.Float64,
}

_AGENTS: Final[dict[str, Any]] = {
    "agent": pl.String,
    "requests": pl.Int64,
    "calls": pl.Int64,
    **dict.fromkeys(("engine_sec", "tool_sec", "other_sec", "path_sec", "engine_share"), pl.Float64),
    **dict.fromkeys(("prompt_tokens", "cached_tokens", "completion_tokens", "response_tokens"), pl.Int64),
}

Row = dict[str, Any]


def request_trees(digest: Digest) -> pl.DataFrame:
    """Return the requests that work for others, with these others, tree by tree, the longest first.

    Args:
        digest: Of the steps to show. Requests are joined within a step: a parent of the same worker is taken
            before one of another worker.

    Returns:
        The columns of `request_table`, a request before its children, these in the order of time; other_sec
        without agents_sec. tree: counts trees, from 0; root_request: the id of the request at the top; depth:
        below it; children: how many requests it had made; start_sec: since the tree began; agents_sec: the
        time in which any child went on; path_sec: for how long it decides the tree: backwards from the end of
        a request, its child that ended last decides while that goes on, else the request itself. The path_sec
        of a tree add up to the time from the begin of its root to its end.
    """
    table = request_table(digest).drop_nulls(["start_us", "end_us"])
    rows = table.to_dicts()
    children = _children_of(rows)
    of_others = {number for numbers in children.values() for number in numbers}
    roots = [number for number in children if number not in of_others]
    roots.sort(key=lambda number: (-(rows[number]["duration_sec"] or 0.0), rows[number]["request_id"]))
    trees = [
        row for tree, root in enumerate(roots) for row in _tree_rows(tree, root, rows, children)
    ]  # a circle of parents has no root: such requests are in no tree
    schema = {**table.schema, **_OF_TREE}
    return pl.DataFrame(trees, schema=schema, strict=False)


def _children_of(rows: Sequence[Row]) -> dict[int, list[int]]:
    """Return the children of each request that has any, by their numbers in `rows`."""
    children: dict[int, list[int]] = {}
    for number, parent in parents_of(rows).items():
        children.setdefault(parent, []).append(number)
    for numbers in children.values():
        numbers.sort(key=lambda number: (rows[number]["start_us"] or 0, rows[number]["request_id"]))
    return children


def parents_of(rows: Sequence[Row]) -> dict[int, int]:
    """Return the parent of each request that has one, by their numbers in `rows`: rows of `request_table`."""
    by_id: dict[tuple[Any, ...], list[int]] = {}
    for number, row in enumerate(rows):
        by_id.setdefault((*(row[name] for name in _STEP), row["request_id"]), []).append(number)
    known: dict[int, int] = {}
    for number, row in enumerate(rows):
        if row["parent_request"] is None:
            continue
        parents = by_id.get((*(row[name] for name in _STEP), row["parent_request"]), [])
        parents = [parent for parent in parents if parent != number]
        if parents:
            known[number] = min(parents, key=lambda parent: _distance(rows[parent], row))
    return known


def _distance(parent: Row, child: Row) -> tuple[bool, bool, int]:
    """Order requests of one id: of the child's worker, those that go on when it begins, the newest."""
    starts, begins = parent["start_us"] or 0, child["start_us"] or 0
    goes_on = starts <= begins <= (parent["end_us"] or begins)
    return parent["worker"] != child["worker"], not goes_on, -starts


def _tree_rows(
    tree: int, root: int, rows: Sequence[Row], children: Mapping[int, Sequence[int]]
) -> Iterator[Row]:
    sums: dict[int, int] = {}
    for number, begin, end in path_of(root, rows, children):
        sums[number] = sums.get(number, 0) + end - begin
    for number, depth in _walk(root, children):
        row = rows[number]
        mine = [rows[child] for child in children.get(number, ())]
        agents_sec = _union_us([(child["start_us"], child["end_us"]) for child in mine]) * _US
        work = sum(row[f"{kind}_sec"] or 0.0 for kind in KINDS)
        yield {
            **row,
            "tree": tree,
            "root_request": rows[root]["request_id"],
            "depth": depth,
            "children": len(mine),
            "start_sec": (row["start_us"] - rows[root]["start_us"]) * _US,
            "agents_sec": agents_sec if mine else None,
            "other_sec": max(0.0, (row["duration_sec"] or 0.0) - work - agents_sec),
            "path_sec": sums.get(number, 0) * _US,
        }


def _walk(root: int, children: Mapping[int, Sequence[int]]) -> Iterator[tuple[int, int]]:
    """Yield the requests of a tree, parents first, with their depth."""
    waiting = [(root, 0)]
    while waiting:
        number, depth = waiting.pop()
        yield number, depth
        waiting += [(child, depth + 1) for child in reversed(children.get(number, ()))]


def path_of(
    root: int, rows: Sequence[Row], children: Mapping[int, Sequence[int]]
) -> list[tuple[int, int, int]]:
    """Return the pieces of a tree's critical path, the last first: request, from_us, to_us.

    Args:
        root: The number of the request at the top.
        rows: Requests with start_us, end_us.
        children: The numbers of the children of each.
    """
    pieces: list[tuple[int, int, int]] = []
    waiting = [(root, rows[root]["start_us"], rows[root]["end_us"])]
    while waiting:
        number, begin, end = waiting.pop()
        inside = [
            (max(begin, rows[child]["start_us"]), rows[child]["end_us"], child)
            for child in children.get(number, ())
        ]
        last = max(
            ((min(until, end), since, child) for since, until, child in inside if since < min(until, end)),
            default=None,
        )
        if last is None:
            pieces.append((number, begin, end))
            continue
        until, since, child = last
        pieces.append((number, until, end))
        waiting.append((number, begin, since))
        waiting.append((child, since, until))
    return [piece for piece in pieces if piece[2] > piece[1]]


def _union_us(times: Sequence[tuple[int, int]]) -> int:
    """Return the length of the union of some intervals."""
    covered, reach = 0, None
    for begin, end in sorted(times):
        covered += max(0, end - (begin if reach is None else max(begin, reach)))
        reach = end if reach is None else max(reach, end)
    return covered


def agent_table(digest: Digest, calls: pl.DataFrame) -> pl.DataFrame:
    """Return one row per agent: what its requests took and cost; empty where no agent is bound.

    Args:
        digest: Of the steps to count.
        calls: Rows of `server_calls` in these steps.

    Returns:
        agent; null stands for requests without one; requests; calls: of the engine, null where no caller or
        server logs them; engine_sec, tool_sec, other_sec: sums; engine_share: of the engine time of all
        agents; prompt_tokens, cached_tokens, completion_tokens: of its calls; response_tokens: of its
        requests; path_sec: for how long its requests decide their trees.
    """
    requests = request_table(digest)
    if requests["agent"].null_count() == len(requests):
        return pl.DataFrame(schema=_AGENTS)
    trees = request_trees(digest).group_by("agent").agg(pl.col("path_sec").sum())
    rows = requests.group_by("agent").agg(
        requests=pl.len().cast(pl.Int64),
        **{name: _known_sum(name) for name in ("engine_sec", "tool_sec", "other_sec", "response_tokens")},
    )
    key = [*_STEP, "worker", "request_id"]
    named = calls.join(requests.select(*key, "agent").unique(key), on=key, how="inner")
    sizes = ("prompt_tokens", "cached_tokens", "completion_tokens")
    counted = named.group_by("agent").agg(
        calls=pl.len().cast(pl.Int64), **{name: _known_sum(name) for name in sizes}
    )
    for more in (counted, trees):
        rows = rows.join(more, on="agent", how="left", nulls_equal=True)
    total = rows["engine_sec"].sum()
    share = pl.col("engine_sec") / total if total else pl.lit(None, pl.Float64)
    return rows.with_columns(engine_share=share).sort("engine_sec", "agent", descending=[True, False])


def _known_sum(name: str) -> pl.Expr:
    return pl.when(pl.col(name).count() > 0).then(pl.col(name).sum())
