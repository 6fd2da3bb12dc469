"""Read a dataset of an earlier version: as one of this version, in a temporary folder."""

import shutil
import tempfile
import weakref
from pathlib import Path

from sglang_instrument.analysis.executors.local import LocalExecutor
from sglang_instrument.analysis.store.earlier_datasets import write_as_parts
from sglang_instrument.safe_files.folder import SafeFolder


class EarlierDataset(LocalExecutor):
    """The executor of a dataset of an earlier version.

    Args:
        folder: The dataset.

    Raises:
        LogError: The dataset is incomplete or damaged.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, home=Path(tempfile.mkdtemp(prefix="sglang-instrument-")))
        weakref.finalize(self, shutil.rmtree, self.home, ignore_errors=True)
        write_as_parts(folder, SafeFolder(self.home))
