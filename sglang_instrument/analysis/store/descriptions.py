"""Copy what the processes of a run said of themselves."""

from pathlib import Path
from typing import Final

from sglang_instrument.analysis.reading.processes_of_run import REACHED
from sglang_instrument.regular_files import read_regular
from sglang_instrument.safe_files.folder import SafeFolder

_MOST_BYTES: Final = 16 * 2**20  # a process with thousands of patches describes itself in less than 1 MiB


def copy_descriptions(home: Path, target: SafeFolder) -> None:
    """Copy the folder `processes` of a run into another folder, without what cannot be read.

    Raises:
        OSError: It cannot be written.
    """
    source = home / "processes"
    for path in (*source.glob("[!.]*.json"), *source.glob(f"{REACHED}/[!.]*.json")):
        try:
            content = read_regular(path, _MOST_BYTES)
        except OSError:  # `status` of the log reports it
            continue
        folder, name = target.split(path.relative_to(home).as_posix())
        folder.write(name, content)
