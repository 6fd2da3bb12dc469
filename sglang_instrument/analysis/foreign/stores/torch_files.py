"""Read what `torch.save` wrote without torch, and without running anything that the file names.

A file of `torch.save` is a zip archive with a pickle. A pickle may name any function of any module; here each
becomes an object without content. So numbers, text, lists and dicts are read, and tensors are not.
"""

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any, Final

from sglang_instrument.analysis.foreign.stores.pickle_bounds import demand_bounded
from sglang_instrument.errors import LogError
from sglang_instrument.regular_files import open_regular

_PICKLE: Final = "/data.pkl"
_MOST_BYTES: Final = 4 * 2**30  # of the pickle; the prompts and tokens of a step are some 100 MiB
_BUFFER_BYTES: Final = 256 * 1024


class Opaque:
    """In place of anything that a file would have made by a class or a function; takes what it is given."""

    __slots__ = ()

    def __new__(cls, *_: Any, **__: Any) -> "Opaque":
        """Take any arguments."""
        return super().__new__(cls)

    def __init__(self, *_: Any, **__: Any) -> None:
        """Take any arguments."""

    def __setstate__(self, state: Any) -> None:
        """Drop the state."""

    def __setitem__(self, key: Any, value: Any) -> None:
        """Drop an entry."""

    def append(self, element: Any) -> None:
        """Drop an element."""

    def extend(self, many: Any) -> None:
        """Drop elements."""

    def add(self, element: Any) -> None:
        """Drop an element."""


class _Unpickler(pickle.Unpickler):
    """Builds numbers, text and containers; nothing that a file names is imported or called."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        return Opaque

    def persistent_load(self, pid: Any) -> Any:
        """Return an object without content in place of the storage of a tensor."""
        return Opaque()


def is_torch_file(head: bytes) -> bool:
    """Return whether a file may come from `torch.save`, by its first bytes."""
    return head.startswith(b"PK\x03\x04") and _PICKLE.encode() in head


def read_torch(path: Path) -> tuple[Any, int]:
    """Return what a file of `torch.save` holds, with `Opaque` for tensors and other objects, and its bytes.

    The value takes memory in proportion to these bytes. The same object may stand in it many times.

    Raises:
        OSError: The file cannot be read.
        LogError: It is no such file, or is damaged.
    """
    with open_regular(path) as file:
        try:
            with zipfile.ZipFile(file) as archive, archive.open(_entry(archive)) as entry:
                pickled = entry.read()
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
            raise LogError(f"not a whole file of torch.save: {error}") from None
    demand_bounded(pickled)
    return _unpickled(pickled), len(pickled)


def _entry(archive: zipfile.ZipFile) -> zipfile.ZipInfo:
    for entry in archive.infolist():
        if entry.filename.endswith(_PICKLE):
            if entry.file_size > _MOST_BYTES:
                raise LogError(f"its pickle has {entry.file_size:,} bytes; at most {_MOST_BYTES:,} are read")
            if entry.compress_type != zipfile.ZIP_STORED:  # a few bytes could stand for gigabytes
                raise LogError("its pickle is compressed, as torch.save writes none")
            return entry
    raise LogError("not a file of torch.save: it has no data.pkl")


def _unpickled(pickled: bytes) -> Any:
    try:
        # The unpickler reads small pieces. Of a stream that can peek, it takes a buffer at once.
        return _Unpickler(io.BufferedReader(io.BytesIO(pickled), _BUFFER_BYTES)).load()
    except Exception as error:
        raise LogError(f"its pickle is damaged: {type(error).__name__}") from None
