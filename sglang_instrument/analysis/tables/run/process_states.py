"""What `status` shows of the processes of a run: is each one patched, does it record, what did it drop."""

from __future__ import annotations

from typing import Final

from sglang_instrument.analysis.tables.column import Column
from sglang_instrument.analysis.tables.table import Table

STATES: Final = Table(
    name="process_states",
    row="a process, as it described itself last",
    commands=("status",),
    columns=(
        Column(
            "process",
            'role and rank, such as worker_3; on a terminal "reached" if it has recorded nothing so far',
        ),
        Column("host", "where it runs", gives_way=2, optional=True),
        Column("pid", "its process id", "id", gives_way=1, optional=True),
        Column(
            "state",
            "running, ended, or ended abruptly (killed, os._exit, exec); null of processes of another host",
            styles={"ended abruptly": "red", "running": "green"},
        ),
        Column("actor", "the class of the Ray actor", gives_way=3, optional=True),
        Column("versions", "of the packages that it uses", "object", gives_way=4, optional=True),
        Column(
            "patches",
            "its patches: event, target, state and why; a terminal counts the events that it can record, of "
            "those whose code it imported",
            "list",
            optional=True,
        ),
        Column(
            "recorded",
            'how many records it took; "at least 40" if the final report is missing: killed, or on another '
            "host",
            "count",
            gives_way=5,
            json=False,
            frame=False,
            former_title="records",
        ),
        Column("dropped", "records that could not be written", "count", json=False, frame=False),
        Column(
            "notices",
            "its notices, and how often each; a terminal counts them",
            "list",
            optional=True,
            shown_as="count",
        ),
        Column(
            "records",
            "its counts of records: recorded, written, dropped ...",
            "object",
            terminal=False,
            optional=True,
        ),
        Column("run_id", "the launch", terminal=False, optional=True),
        Column(
            "role",
            "worker, trainer, server ...; null if it has recorded nothing",
            terminal=False,
            optional=True,
        ),
        Column("rank", "its rank; null if it has none", "id", terminal=False, optional=True),
    ),
)
