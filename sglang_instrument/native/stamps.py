"""Say which modules are compiled, and which state of their sources they have to come from."""

import os
import re
from binascii import crc32  # hashlib and pathlib take longer to import than all else that is done here
from typing import Final

#: In the order in which they need each other.
MODULES: Final = ("values", "spans", "context", "runs", "lines")

_NEEDED = re.compile(
    rb'^(?:include "([\w.]+)"|(?:from|cimport) sglang_instrument\.native\.(\w+)\b)', re.MULTILINE
)


def stamp_of(folder: str, module: str) -> str:
    """Return the stamp of `module` in `folder`: of its own source, and of all that it includes or cimports.

    Raises:
        OSError: The sources cannot be read.
    """
    checked, length = 0, 0
    waiting, seen = [f"{module}.pyx"], {f"{module}.pyx"}
    while waiting:
        name = waiting.pop()
        with open(os.path.join(folder, name), "rb") as source:  # noqa: PTH118, PTH123 - see above
            text = source.read()
        checked, length = crc32(name.encode() + text, checked), length + len(text)
        needed = [f"{one.decode()}.pxd" if one else part.decode() for part, one in _NEEDED.findall(text)]
        declared = name.replace(".pyx", ".pxd")
        if os.path.exists(os.path.join(folder, declared)):  # noqa: PTH110, PTH118 - as above
            needed.append(declared)
        waiting += sorted(set(needed) - seen)
        seen.update(needed)
    return f"sources-{checked:08x}-{length:x}"
