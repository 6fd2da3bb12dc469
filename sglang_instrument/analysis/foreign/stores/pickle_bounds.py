"""Tell before a pickle is read whether reading it takes memory in proportion to its bytes.

A few bytes can make Python's unpickler allocate gigabytes: it makes room for a memo of any number, and for a
text of any length that an opcode announces. So the opcodes are walked first, without making an object. A
regular expression passes long runs of numbers, and all else that has a fixed length, at the speed of C.
"""

import re
from functools import cache
from typing import Final

from sglang_instrument.errors import LogError

#: Lists, dicts and tuples: each opcode of one byte makes an object of some 64.
MOST_CONTAINERS: Final = 2**25
_CONTAINERS: Final = (b"}", b"]", b"(", b"\x85", b"\x86", b"\x87")
#: Opcodes without arguments: of numbers, lists, dicts, tuples, marks and objects. Those of sets are not here.
_BARE: Final = rb"[()\]}NabdelostuRQ012\x81\x85-\x89\x92-\x94]"
_FIXED: Final = (rb"K.", rb"M..", rb"J.{4}", rb"G.{8}", rb"[hq].", rb"j.{4}", rb"\x80.")
#: Those of masks, tokens and probabilities. Some are matched at once: that is faster.
_OFTEN: Final = (rb"K.", rb"M..", rb"G.{8}")
_AT_ONCE: Final = 8
_SHORT_TEXT: Final = 64  # texts of up to so many bytes are matched, too
#: Opcodes that are followed by so many bytes of a length, and by as many bytes as that says.
_LENGTH_BYTES: Final = {
    **dict.fromkeys(b"U\x8a\x8cC", 1),
    **dict.fromkeys(b"XTB\x8b", 4),
    **dict.fromkeys(b"\x8d\x8e", 8),
}
#: Opcodes that are followed by so many lines of text.
_LINES: Final = {**dict.fromkeys(b"IFLSVPg", 1), **dict.fromkeys(b"ci", 2), ord("p"): 1}
_FRAME: Final = ord(b"\x95")  # a length, of which nothing is skipped
_FRAME_BYTES: Final = 8
_LONG_BINPUT: Final = ord("r")
_PUT: Final = ord("p")
_STOP: Final = ord(".")
_MOST_REPEATS: Final = 2**12  # in one match: the engine of regular expressions keeps a note of each


def demand_bounded(pickled: bytes) -> None:
    """Raise unless reading a pickle takes memory in proportion to its bytes.

    Raises:
        LogError: It numbers a memo or announces a text beyond what it has bytes for, has too many containers,
            or an opcode that the data of a dump does not need.
    """
    run = _runs(len(pickled))
    position, end, containers = 0, len(pickled), 0
    may_have_many = end > MOST_CONTAINERS
    while position < end:
        if match := run.match(pickled, position):
            if may_have_many:
                containers += sum(pickled.count(opcode, position, match.end()) for opcode in _CONTAINERS)
            if containers > MOST_CONTAINERS:
                raise LogError(f"its pickle has more than {MOST_CONTAINERS:,} lists, dicts and tuples")
            position = match.end()
        elif pickled[position] == _STOP:
            return
        else:
            position = _after_opcode(pickled, position)
    raise LogError("its pickle is damaged: it ends early")


@cache
def _runs(size: int) -> re.Pattern[bytes]:
    """Return what matches a run of opcodes of a fixed length, in a pickle of so many bytes."""
    # A memo is put by an opcode, so that no number of one is larger than the pickle has bytes.
    high = rb"\x00{2}" if size < 2**16 else rb".\x00" if size < 2**24 else rb".[\x00-\x01]"
    texts = b"|".join(b"\\x%02x\\x00{3}.{%d}" % (length, length) for length in range(_SHORT_TEXT + 1))
    fixed = b"|".join([*(opcode * _AT_ONCE for opcode in _OFTEN), *_FIXED, b"X(?:%b)" % texts])
    return re.compile(b"(?:%b|%b|r..%b){1,%d}" % (_BARE, fixed, high, _MOST_REPEATS), re.DOTALL)


def _after_opcode(pickled: bytes, position: int) -> int:
    """Return where the opcode after one that is not in a run begins."""
    opcode, after = pickled[position], position + 1
    if opcode in _LENGTH_BYTES:
        begin = after + _LENGTH_BYTES[opcode]
        announced = int.from_bytes(pickled[after:begin], "little")
        _demand_bytes(announced, len(pickled) - begin)
        return begin + announced
    if opcode == _FRAME:
        begin = after + _FRAME_BYTES
        _demand_bytes(int.from_bytes(pickled[after:begin], "little"), len(pickled) - begin)
        return begin
    if opcode in _LINES:
        for _ in range(_LINES[opcode]):
            begin, after = after, pickled.find(b"\n", after) + 1
            if not after:
                raise LogError("its pickle is damaged: it ends early")
        if opcode == _PUT:
            _demand_memo(pickled[begin : after - 1], len(pickled))
        return after
    if opcode == _LONG_BINPUT:
        _demand_memo(b"%d" % int.from_bytes(pickled[after : after + 4], "little"), len(pickled))
        return after + 4
    raise LogError(f"its pickle is damaged, or has the opcode {opcode:#04x}, which no dump needs")


def _demand_bytes(announced: int, left: int) -> None:
    if announced > left:
        raise LogError(f"its pickle announces {announced:,} bytes where it has {max(0, left):,}")


def _demand_memo(number: bytes, size: int) -> None:
    if not number.isdigit() or len(number) > 10 or int(number) > size:
        raise LogError(
            f"its pickle numbers a memo {number[:20].decode('ascii', 'replace')} in {size:,} bytes"
        )
