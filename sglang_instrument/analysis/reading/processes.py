"""Read the self-description of a process in `processes/`, and check its types."""

from pathlib import Path
from typing import Any, Final

import msgspec
import orjson

from sglang_instrument.errors import LogError
from sglang_instrument.regular_files import read_regular

_MOST_BYTES: Final = 16 * 2**20  # a process with thousands of patches writes less than 1 MiB


class _PatchState(msgspec.Struct):
    event: str
    state: str
    target: str
    note: str | None = None
    expected: bool | None = None


class _Notice(msgspec.Struct):
    notice: str
    times: int


class _ProcessFile(msgspec.Struct):
    """The keys that answers use; others are shown as they are."""

    run_id: str | None = None
    role: str | None = None
    rank: int | None = None
    host: str | None = None
    pid: int | None = None
    actor: str | None = None
    versions: dict[str, str] = {}
    records: dict[str, int] = {}
    patches: list[_PatchState] = []
    notices: list[_Notice] = []
    log_closed: bool | None = None


def read_process(path: Path) -> dict[str, Any]:
    """Return the self-description of a process, with checked types.

    Raises:
        LogError: The file cannot be read, or a value has another type.
    """
    try:
        facts = orjson.loads(read_regular(path, _MOST_BYTES))
        msgspec.convert(facts, _ProcessFile)
    except (OSError, ValueError, msgspec.ValidationError) as error:
        raise LogError(str(error)) from None
    assert isinstance(facts, dict)  # noqa: S101 - convert() accepts nothing else
    return facts
