"""Print requests of agents below the requests that they work for: `requests --tree`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from sglang_instrument.analysis.tables.rollout.agents import REQUEST_TREES
from sglang_instrument.cli import select
from sglang_instrument.cli.commands.unbound import words_for_nothing
from sglang_instrument.cli.tables import print_json, print_rows

if TYPE_CHECKING:
    from sglang_instrument.analysis.run.opening import Run

_NO_TREES = (
    "no request is bound as one that works for another: `bind(agent=..., request_id=...)` inside a request, "
    "or `bind(parent_request=...)`"
)


def show_request_trees(opened: Run, args: argparse.Namespace) -> int:
    """Print the trees of requests, the longest first."""
    import polars as pl

    from sglang_instrument.analysis.answers.agents import request_trees

    steps = select.steps_of(opened, args, opened.everything)
    table = request_trees(opened.everything.filter(select.chosen(args, steps)))
    trees = table["tree"].n_unique()
    if args.request is not None:
        mine = table.filter(pl.col("request_id").str.starts_with(args.request))["tree"]
        table = table.filter(pl.col("tree").is_in(mine.implode()))
    rows = table.filter(pl.col("tree").rank("dense") <= args.limit).to_dicts()
    if args.json:
        print_json({"folder": str(opened.folder), "request_trees": REQUEST_TREES.in_json(rows)})
        return 0
    title = f"{opened.name}: trees of requests, the slowest of {trees:,}"
    nothing = "" if rows else _NO_TREES if len(opened.everything.requests) else words_for_nothing(opened)
    print_rows(REQUEST_TREES, rows, title=title, nothing=nothing)
    return 0
