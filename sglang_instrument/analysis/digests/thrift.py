"""Read structs in Thrift's compact protocol, in which footers and page headers of Parquet are written.

https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
"""

from collections.abc import Mapping
from typing import Any, Final

_TRUE, _FALSE, _BYTE = 1, 2, 3
_INTEGERS: Final = (4, 5, 6)  # of 16, 32 and 64 bits: zigzag and variable length
_DOUBLE, _BINARY, _LIST, _SET, _STRUCT = 7, 8, 9, 10, 12
_MOST_VARINT_BYTES: Final = 10
_DEEPEST: Final = 16  # structs and lists in each other; those of Parquet have nine levels
_LONG_LIST: Final = 15

_NOTHING: Final[Mapping[int, Any]] = {}

#: Which fields to read, by number: None for a number; fields of a struct, or of each struct of a list.
Wanted = Mapping[int, Any]


class CompactReader:
    """Reads structs from bytes.

    Args:
        data: The bytes.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        #: Where the next byte stands.
        self.position = 0

    def struct(self, wanted: Wanted, depth: int = 0) -> dict[int, Any]:
        """Return fields of a struct by number: integers, texts, structs as dicts, and lists of these.

        Raises:
            IndexError: The bytes end before the struct.
            ValueError: They are no struct.
        """
        fields: dict[int, Any] = {}
        data, number = self._data, 0
        while kind_and_step := data[self.position]:
            self.position += 1
            step, kind = kind_and_step >> 4, kind_and_step & 15
            number = number + step if step else self._integer()
            if kind in _INTEGERS:  # most fields
                value = self._integer()
            else:
                value = self._value(kind, wanted.get(number) or _NOTHING, depth, in_list=False)
            if number in wanted:
                fields[number] = value
        self.position += 1
        return fields

    def _value(self, kind: int, wanted: Wanted, depth: int, *, in_list: bool) -> Any:
        if depth > _DEEPEST:
            raise ValueError("structs or lists are nested too deep")
        if kind == _STRUCT:
            return self.struct(wanted, depth + 1)
        if kind == _BINARY:
            return self._skip(self._varint())
        if kind in (_LIST, _SET):
            return self._list(wanted, depth)
        if kind in _INTEGERS:
            return self._integer()
        if kind in (_TRUE, _FALSE):
            return bool(self._byte() if in_list else kind == _TRUE)
        if kind == _BYTE:
            return self._byte()
        if kind == _DOUBLE:
            return self._skip(8)
        raise ValueError(f"a field has the unknown type {kind}")

    def _list(self, wanted: Wanted, depth: int) -> list[Any]:
        header = self._byte()
        size, kind = header >> 4, header & 15
        if size == _LONG_LIST:
            size = self._varint()
        if size > len(self._data) - self.position:  # each item takes a byte
            raise IndexError
        return [self._value(kind, wanted, depth + 1, in_list=True) for _ in range(size)]

    def _integer(self) -> int:
        number = self._varint()
        return (number >> 1) ^ -(number & 1)

    def _varint(self) -> int:
        data, position = self._data, self.position
        number = data[position] & 127
        place = 7
        while data[position] > 127:
            position += 1
            if place == 7 * _MOST_VARINT_BYTES:
                raise ValueError("a number is too long")
            number |= (data[position] & 127) << place
            place += 7
        self.position = position + 1
        return number

    def _skip(self, size: int) -> int:
        """Pass over some bytes; return how many."""
        if size > len(self._data) - self.position:
            raise IndexError
        self.position += size
        return size

    def _byte(self) -> int:
        byte = self._data[self.position]
        self.position += 1
        return byte
