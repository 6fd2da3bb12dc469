"""Say which modules are compiled, and which state of their sources they have to come from."""

import hashlib
import re
from pathlib import Path
from typing import Final

#: In the order in which they need each other.
MODULES: Final = ("values", "spans", "context", "fields", "runs", "lines")

_NEEDED = re.compile(
    rb'^(?:include "([\w.]+)"|(?:from|cimport) sglang_instrument\.native\.(\w+)\b)', re.MULTILINE
)


def stamp_of(folder: Path, module: str) -> str:
    """Return the stamp of `module` in `folder`: of its own source, and of all that it includes or cimports.

    Raises:
        OSError: The sources cannot be read.
    """
    digest = hashlib.sha256()
    waiting, seen = [f"{module}.pyx"], {f"{module}.pyx"}
    while waiting:
        name = waiting.pop()
        text = (folder / name).read_bytes()
        digest.update(name.encode() + b"\0" + text + b"\0")
        declared = Path(name).with_suffix(".pxd").name
        needed = [declared] if name.endswith(".pyx") and (folder / declared).exists() else []
        for included, cimported in _NEEDED.findall(text):
            needed.append(included.decode() or f"{cimported.decode()}.pxd")
        waiting += sorted(set(needed) - seen)
        seen.update(needed)
    return digest.hexdigest()[:32]
