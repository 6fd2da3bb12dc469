"""Print lines safely. Commands print by `say`, or with rich by `tables.py`; a test checks this."""

import sys
from typing import TextIO

from sglang_instrument.plain_text import plain


def say(line: str = "", file: TextIO | None = None) -> None:
    """Print one line as it is, on stdout or on `file`."""
    print(plain(line), file=file or sys.stdout, flush=file is not None)
