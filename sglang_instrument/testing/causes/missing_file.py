"""Plant a file that is missing."""

from dataclasses import dataclass
from pathlib import Path

from sglang_instrument.testing.causes.base import OneWorkerCause


@dataclass(frozen=True)
class MissingFile(OneWorkerCause):
    """The file of `worker` in `step` is missing."""

    cause = "missing-file"

    def damage(self, folder: Path) -> None:
        """Delete the file."""
        self.log(folder).unlink()
