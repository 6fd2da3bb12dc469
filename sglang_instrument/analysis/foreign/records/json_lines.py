"""Decode the lines of foreign JSON files into Structs, and count those that are none."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from sglang_instrument.analysis.foreign.records.rows import ForeignLog
from sglang_instrument.analysis.reading.chunks import open_log, whole_lines
from sglang_instrument.analysis.reading.records.decoding import decode_lines, fitting
from sglang_instrument.analysis.reading.records.lines import Rejects
from sglang_instrument.errors import LogError

_Kind = TypeVar("_Kind", bound=msgspec.Struct)


class JsonLines(Generic[_Kind]):
    """Decodes lines into Structs of one kind; a line with a field of another type loses only that field."""

    def __init__(self, kind: type[_Kind]) -> None:
        self._kind = kind
        self._decoder = msgspec.json.Decoder(kind)
        self._required = [field.encode_name for field in msgspec.structs.fields(kind) if field.required]

    def read(self, path: Path, log: ForeignLog) -> Iterator[list[_Kind]]:
        """Yield the records of a file, a chunk of lines at a time; note in `log` what cannot be read."""
        log.files.append(path)
        try:
            with open_log(path) as stream:
                for chunk in whole_lines(stream):
                    yield self.decode(chunk, log.rejects)
        except (OSError, EOFError, LogError) as error:
            log.unreadable[path.name] = str(error)

    def decode(self, chunk: bytes, rejects: Rejects) -> list[_Kind]:
        """Decode complete lines; count those that are no records."""
        return decode_lines(self._decoder, chunk, lambda raw: self._leniently(raw, rejects))

    def _leniently(self, raw: bytes, rejects: Rejects) -> _Kind | None:
        try:
            # json.loads, not msgspec: these projects write NaN, which is not valid JSON.
            fields = json.loads(raw.decode("utf-8", "replace"), parse_constant=lambda _: None)
        except (ValueError, RecursionError):
            rejects.torn += raw.lstrip().startswith(b"{")
            rejects.foreign += not raw.lstrip().startswith(b"{")
            return None
        valid = fitting(self._kind, fields, rejects.unfit) if isinstance(fields, dict) else {}
        if any(name not in valid for name in self._required):
            rejects.foreign += 1
            return None
        return self._kind(**valid)
