"""Keep as many headers of log files as tell which launches there were, and which is the newest."""

from collections.abc import Sequence
from typing import Any

from sglang_instrument.analysis.reading.files import Control, File
from sglang_instrument.analysis.reading.records.fields import ControlFields
from sglang_instrument.schema import LOG_OPENED


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
            was = header.extra
            extra = ControlFields(
                step_bound=was.step_bound, launch=was.launch, launcher=was.launcher, rank=was.rank
            )
            of_places[folder, role].append(Control(LOG_OPENED, header.run_id, header.time_us, extra))
    return [File(names[place], 0, 0, controls=controls) for place, controls in of_places.items()]
