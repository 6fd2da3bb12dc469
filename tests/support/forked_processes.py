"""A plugin of SGLang: let a server fork its processes, so that none imports 6,000 modules once more.

SGLang spawns them, because a process that uses CUDA cannot fork. Other tests have servers that do, as they
test how such processes are reached.
"""

import multiprocessing

from sglang.srt.plugins.hook_registry import HookRegistry, HookType


def fork():
    """Set the method when SGLang has set its own."""
    HookRegistry.register(
        "sglang.srt.entrypoints.engine._set_envs_and_config",
        lambda *_, **__: multiprocessing.set_start_method("fork", force=True),
        HookType.AFTER,
    )
