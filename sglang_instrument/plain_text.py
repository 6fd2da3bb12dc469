"""Make text from files, servers and file names safe to print, and short.

What is read may hold escape sequences that set a terminal's title, hide lines or type into the shell.
"""

import re
from collections.abc import Sequence
from typing import Final

#: Besides C0: DEL and C1, marks of writing direction, line separators, and lone surrogates, which represent
#: bytes of file names that are not UTF-8.
_BEYOND_C0: Final = "\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_CONTROLS: Final = re.compile(f"[\x00-\x1f{_BEYOND_C0}]")
_IN_JSON: Final = re.compile(f"[{_BEYOND_C0}]")


def plain(text: str) -> str:
    """Return text as one line in which control characters are written as in Python's source: \\x1b, \\n."""
    return _CONTROLS.sub(lambda match: ascii(match[0])[1:-1], text)


def plain_lines(text: str) -> str:
    """Return text as `plain` does, but with its line ends: some texts of a page have several lines."""
    return "\n".join(map(plain, text.split("\n")))


def plain_json(text: str) -> str:
    """Return the same JSON with those control characters escaped that JSON itself leaves as they are."""
    return _IN_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def listed(names: Sequence[str], most: int) -> str:
    """Return names in one line, of many the first ones: "worker 0, worker 1 and 6 more"."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more:,} more" if more > 0 else "")


def duration(sec: float) -> str:
    """Return a duration for people: 0.4 s, 12 s, 3 min 20 s, 2 h 5 min."""
    if sec < 9.95:
        return f"{sec:.1f} s"
    whole = round(sec)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
