"""Tell before a Parquet file is read whether reading it takes memory in proportion to its bytes.

A footer may claim any number of rows, and a few bytes of a page can stand for gigabytes: packed zeros, one
value for a billion rows, texts that repeat the text before. Readers trust both. So the footer and the header
of each page are read first, and a file is refused if its columns would need more than its bytes account for.
https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift has the structs.
"""

import os
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from sglang_instrument.analysis.digests.thrift import CompactReader
from sglang_instrument.regular_files import open_regular

_MAGIC: Final = b"PAR1"
_END_BYTES: Final = 8  # the length of the footer, and the magic
_MOST_FOOTER_BYTES: Final = 4 * 2**20  # 100 columns of 100 million rows take a fifth of it
_MOST_COLUMNS: Final = 1_000
_MOST_PAGES: Final = 100_000  # of about a megabyte each
_HEADER_BYTES: Final = (2**12, 2**16, 2**24)  # to try: pages may name their least and largest texts
_VALUE_BYTES: Final = 16  # of a value in memory: a number takes 8, and a text 16 beside its characters
_ANY_BYTES: Final = 64 * 2**20
_MOST_RATIO: Final = 500  # of bytes in memory; the parts of our stores have 10 to 50
_PREFIXED_TEXTS: Final = 7  # DELTA_BYTE_ARRAY: each text begins like the one before
_TEXT: Final = 6  # BYTE_ARRAY
_REPEATED: Final = 2
_DICTIONARY: Final = 2  # the type of a page

# The fields that are read, by number.
_FOOTER: Final = {
    2: {2: None, 3: None, 5: None},
    3: None,
    4: {1: {3: {1: None, 5: None, 7: None, 9: None, 11: None}}, 3: None},
}
_PAGE: Final = dict.fromkeys((1, 2, 3)) | {
    5: {1: None, 2: None},
    7: {1: None, 2: None},
    8: {1: None, 4: None},
}


class _Page(NamedTuple):
    """What the header of a page claims."""

    is_dictionary: bool
    unpacked_bytes: int
    values: int


def demand_bounded(path: Path) -> bool:
    """Raise unless reading a Parquet file takes memory in proportion to its bytes.

    Returns:
        Whether its texts are bounded, too: those of a dictionary may stand in any number of rows, which share
        them as long as no row is made a Python object or written elsewhere.

    Raises:
        OSError: It cannot be read.
        ValueError: It is no flat table in Parquet, or claims more than its bytes account for.
    """
    about = path.stat()
    return _walk(path, about.st_ino, about.st_mtime_ns, about.st_size)


def most_bytes(path: Path) -> int:
    """Return how much memory the columns of a file may take, and its texts as often as they stand in rows."""
    return max(_ANY_BYTES, _MOST_RATIO * path.stat().st_size)


@lru_cache(maxsize=4096)
def _walk(path: Path, inode: int, mtime_ns: int, size: int) -> bool:
    """Return what `demand_bounded` does; the other arguments tell that the file has not changed."""
    most = max(_ANY_BYTES, _MOST_RATIO * size)
    with open_regular(path) as file:
        try:
            memory, texts = _claims(file, os.fstat(file.fileno()).st_size)
        except (IndexError, KeyError, TypeError, AttributeError):
            raise ValueError(f"{path} is damaged: its footer or a page's header cannot be read") from None
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
    if memory > most:
        raise ValueError(
            f"{path}: its {size:,} bytes claim to be {memory:,} in memory; no part of a log is more than "
            f"{_MOST_RATIO} times its bytes, or {_ANY_BYTES:,}"
        )
    return texts <= most


def _claims(file: BinaryIO, size: int) -> tuple[int, int]:
    """Return how many bytes the columns of a file take, and at most all of its texts, written out."""
    footer, data_end = _footer(file, size)
    widths = _widths(footer[2])
    memory, texts = _VALUE_BYTES * max(0, footer[3]), 0
    pages = 0
    for group in footer[4]:
        rows = group[3]
        memory += _VALUE_BYTES * max(0, rows)
        for column, width in zip(group[1], widths, strict=True):
            chunk = column[3]
            values, dictionary, unpacked = 0, 0, 0
            for page in _pages_of(file, chunk, data_end):
                pages += 1
                if pages > _MOST_PAGES:
                    raise ValueError(f"it has more than {_MOST_PAGES:,} pages")
                unpacked += page.unpacked_bytes
                dictionary = max(dictionary, page.unpacked_bytes if page.is_dictionary else 0)
                values += page.values
            values = max(rows, chunk[5], values)
            memory += unpacked + width * values
            texts += unpacked + values * dictionary if chunk[1] == _TEXT else 0
    return memory, texts


def _footer(file: BinaryIO, size: int) -> tuple[dict[int, Any], int]:
    """Return the footer of a file, and where it begins."""
    file.seek(max(0, size - _END_BYTES))
    end = file.read(_END_BYTES)
    length = int.from_bytes(end[:4], "little")
    begin = size - _END_BYTES - length
    if end[4:] != _MAGIC or begin < len(_MAGIC):
        raise ValueError("it is no Parquet file, or was cut")
    if length > _MOST_FOOTER_BYTES:
        raise ValueError(f"its footer has {length:,} bytes, more than {_MOST_FOOTER_BYTES:,}")
    file.seek(begin)
    footer = CompactReader(file.read(length)).struct(_FOOTER)
    return {4: [], **footer}, begin


def _widths(schema: list[Mapping[int, int]]) -> list[int]:
    """Return how many bytes a value of each column takes in memory; the first element is the table itself."""
    columns = schema[1:]
    if len(columns) > _MOST_COLUMNS:
        raise ValueError(f"it has {len(columns):,} columns, more than {_MOST_COLUMNS:,}")
    if any(column.get(5) or column.get(3) == _REPEATED for column in columns):
        raise ValueError("it has columns in columns; ours are flat")
    return [max(_VALUE_BYTES, column.get(2, 0)) for column in columns]


def _pages_of(file: BinaryIO, chunk: Mapping[int, int], data_end: int) -> Iterator[_Page]:
    """Yield the pages of a column of a group of rows."""
    position = min(chunk[9], chunk.get(11) or chunk[9])
    end = position + chunk[7]
    if not len(_MAGIC) <= position <= end <= data_end:
        raise ValueError("a column lies outside of its file")
    while position < end:
        header, header_bytes = _page_header(file, position, end)
        unpacked, packed = header[2], header[3]
        about = header.get(5) or header.get(8) or header.get(7) or {1: 0}
        if min(unpacked, packed, about[1]) < 0:
            raise ValueError("a page has a negative size")
        if about.get(4 if 8 in header else 2) == _PREFIXED_TEXTS:
            raise ValueError("it has texts that repeat the text before; ours stand for themselves")
        yield _Page(header[1] == _DICTIONARY, unpacked, about[1])
        position += header_bytes + packed
    if position > end:
        raise ValueError("a page lies outside of its column")


def _page_header(file: BinaryIO, position: int, end: int) -> tuple[dict[int, Any], int]:
    """Return the header of a page, and how many bytes it has."""
    for size in _HEADER_BYTES:
        file.seek(position)
        reader = CompactReader(file.read(min(size, end - position)))
        try:
            return reader.struct(_PAGE), reader.position
        except IndexError:
            continue
    raise IndexError
