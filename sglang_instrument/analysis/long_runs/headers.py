"""Keep as many headers of log files as tell which launches there were, and which is the newest."""

from collections.abc import Sequence
from typing import Any

from sglang_instrument.analysis.reading.files import Control, File, is_shared
from sglang_instrument.analysis.reading.records.fields import ControlFields
from sglang_instrument.schema import LOG_OPENED, STEP_CLOSED


def headers_of(files: Sequence[File]) -> list[File]:
    """Return files with a few headers that tell the same of launches and newest runs as all of them."""
    first: dict[tuple[Any, ...], Control] = {}
    last: dict[tuple[Any, ...], Control] = {}
    names: dict[tuple[str, str], str] = {}
    for file in files:
        role = "" if file.place is None else file.place.role
        names.setdefault((file.folder, role), file.path)
        for control in file.controls:
            if control.event == LOG_OPENED:
                launch = control.extra.launch, control.extra.launcher, control.extra.rank
                key = (file.folder, role, control.run_id, control.extra.step_bound, *map(str, launch))
                if key not in first or control.time_us < first[key].time_us:
                    first[key] = control
                if key not in last or control.time_us >= last[key].time_us:
                    last[key] = control
    of_places: dict[tuple[str, str], list[Control]] = {place: [] for place in names}
    for headers in (first, last):
        for (folder, role, *_), header in headers.items():
            of_places[folder, role].append(_short_header(header))
    reduced = [File(names[place], 0, 0, controls=controls) for place, controls in of_places.items()]
    return [*reduced, *_following_runs(files)]


def _following_runs(files: Sequence[File]) -> list[File]:
    """Return for each run and each run before it in a file, what tells best how far its clock lies behind."""
    pairs: dict[tuple[str | None, str | None], tuple[int, File]] = {}
    for file in filter(is_shared, files):
        last: dict[str | None, Control] = {}
        for control in file.controls:
            if control.event == LOG_OPENED:
                header = _short_header(control)
                for run_id, before in last.items():
                    behind_us, pair = before.time_us - control.time_us, (run_id, control.run_id)
                    if run_id != control.run_id and (pair not in pairs or behind_us > pairs[pair][0]):
                        ended = Control(STEP_CLOSED, run_id, before.time_us, ControlFields())
                        pairs[pair] = behind_us, File(file.path, 0, 0, list(pair), controls=[ended, header])
            if control.run_id not in last or control.time_us > last[control.run_id].time_us:
                last[control.run_id] = control
    return [file for _, file in pairs.values()]


def _short_header(header: Control) -> Control:
    """Return a header with what tells of launches and newest runs."""
    was = header.extra
    extra = ControlFields(step_bound=was.step_bound, launch=was.launch, launcher=was.launcher, rank=was.rank)
    return Control(LOG_OPENED, header.run_id, header.time_us, extra)
