"""What `collect` brought from each node, and what is not whole."""

from __future__ import annotations

from typing import Final

from sglang_instrument.analysis.tables.column import Column
from sglang_instrument.analysis.tables.table import Table

_PATH: Final = Column("path", "the file, below the run's folder")
_NODE: Final = Column("node", "where it lies")
NODES: Final = Table(
    name="collected_nodes",
    row="a node",
    commands=("collect",),
    columns=(
        Column(
            "name",
            "its host; with a part of Ray's node id, if several nodes run on that host",
            title="node",
        ),
        Column("error", "why it could not be reached or failed in the middle; null if ok", title="state"),
        Column("files", "files of the run that it holds; nodes of a shared disk hold the same ones", "count"),
        Column("new_bytes", "bytes that it gave now", "bytes", title="new"),
        Column(
            "sent_bytes",
            "bytes that travelled for them, compressed; unknown of rsync and storage",
            "bytes",
            gives_way=1,
            title="sent",
        ),
        Column(
            "unfinished_bytes",
            "bytes after the last whole line of its logs: they come next time",
            "bytes",
            gives_way=2,
            title="unfinished",
        ),
    ),
)
MISSING: Final = Table(
    name="collected_in_part",
    row="a file that is here in part or not at all; a terminal prints a sentence",
    commands=("collect",),
    columns=(
        _PATH,
        _NODE,
        Column("held_bytes", "how much of it is here", "bytes"),
        Column("bytes", "how long it is; null if no node could say", "bytes"),
    ),
)
RENAMED: Final = Table(
    name="collected_renamed",
    row="a file of a name that another node has with other contents; a terminal prints a sentence",
    commands=("collect",),
    columns=(_PATH, _NODE, Column("target", "its name here")),
)
