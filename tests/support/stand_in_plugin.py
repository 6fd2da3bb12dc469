"""Declare a function of `tests/support` as a plugin of SGLang, called in each process of a server."""

import shutil
from pathlib import Path


def write_stand_in(folder: Path, plugin: str) -> None:
    """Declare `module:function` in `folder`, on the server's PYTHONPATH, and copy the module to it."""
    module = plugin.partition(":")[0]
    shutil.copy(Path(__file__).parent / f"{module}.py", folder)
    distribution = folder / "sglang_stand_in-0.dist-info"
    distribution.mkdir()
    (distribution / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang-stand-in\nVersion: 0\n")
    (distribution / "entry_points.txt").write_text(f"[sglang.srt.plugins]\nstand_in = {plugin}\n")
