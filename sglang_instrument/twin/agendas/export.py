"""Write the agenda of a run, or the trace of Mooncake that it makes, and say what it lacks."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from sglang_instrument.errors import InstrumentError
from sglang_instrument.safe_files.output import writing_output
from sglang_instrument.twin.agendas.files import write_agenda
from sglang_instrument.twin.agendas.from_log import agenda
from sglang_instrument.twin.agendas.mooncake import mooncake_lines
from sglang_instrument.twin.agendas.planned import thinned

if TYPE_CHECKING:
    from sglang_instrument.analysis.run.opening import Run


def write(
    run: Run,
    agenda_path: Path | None,
    mooncake_path: Path | None,
    steps: Collection[int] | None,
    every: int,
    force: bool,
) -> list[str]:
    """Write one of both files; return lines that say what is in it, and what the log does not tell."""
    path = agenda_path or mooncake_path
    assert path is not None  # noqa: S101 - the command asks for one of them
    if path.is_file() and not force:
        raise InstrumentError(f"{path} is there already; --force overwrites it")
    planned = thinned(agenda(run, steps), every)
    try:
        if agenda_path is not None:
            of_steps, turns = write_agenda(planned, path)
            said = f"{turns:,} turns of {of_steps:,} steps in {path}"
        else:
            with writing_output(path) as file:
                lines = 0
                for line in mooncake_lines(planned):
                    file.write(orjson.dumps(line) + b"\n")
                    lines += 1
            said = f"{lines:,} requests in {path}"
    except OSError as reason:
        raise InstrumentError(f"cannot write {path}: {reason}") from None
    return [said, *planned.missing]
