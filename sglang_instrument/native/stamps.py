"""List the compiled modules, and compute the stamp of the sources that each must be built from."""

import os
import re
from binascii import crc32  # importing hashlib or pathlib takes longer than everything else here
from typing import Final

#: The compiled modules by part, which has the name of its file; each part follows the parts that it needs.
PARTS: Final = {
    "values": "sglang_instrument.recording.measure._values",
    "tasks": "sglang_instrument.recording.measure._tasks",
    "waiting": "sglang_instrument.recording.measure._waiting",
    "context": "sglang_instrument.recording.measure._context",
    "spans": "sglang_instrument.recording.measure._spans",
    "binding": "sglang_instrument.recording.measure._binding",
    "encoder": "sglang_instrument.recording.keep._encoder",
    "region_spans": "sglang_instrument.patching.probes._region_spans",
}
#: The parts that a part needs.
NEEDS: Final = {
    "tasks": ["waiting"],
    "waiting": ["tasks"],
    "spans": ["tasks", "context"],
    "context": ["tasks"],
    "binding": ["context"],
    "encoder": ["spans", "context"],
    "region_spans": ["spans"],
}

_NEEDED: Final = re.compile(rb'^(?:include "([\w./]+)"|from ([\w.]+) cimport)', re.MULTILINE)
_OURS: Final = "sglang_instrument."


def stamp_of(root: str, module: str) -> str:
    """Return the stamp of `module`: a checksum of its source below `root`, and of its includes and cimports.

    Raises:
        OSError: The sources cannot be read.
    """
    checked, length = 0, 0
    first = module.replace(".", "/") + ".pyx"
    waiting, seen = [first], {first}
    while waiting:
        name = waiting.pop()
        with open(os.path.join(root, name), "rb") as source:  # noqa: PTH118, PTH123 - see above
            text = source.read()
        checked, length = crc32(name.encode() + text, checked), length + len(text)
        needed = [name.replace(".pyx", ".pxd")]
        for included, declared in _NEEDED.findall(text):
            if included or declared.startswith(_OURS.encode()):
                needed.append(included.decode() or declared.decode().replace(".", "/") + ".pxd")
        exist = {name for name in needed if os.path.exists(os.path.join(root, name))}  # noqa: PTH110, PTH118 - as above
        waiting += sorted(exist - seen)
        seen |= exist
    return f"sources-{checked:08x}-{length:x}"
