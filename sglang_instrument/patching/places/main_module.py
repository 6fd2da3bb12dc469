"""Find the targets in the module of `python -m NAME`, which runs as `__main__` and is never imported."""

import sys
from collections.abc import Callable, Collection, Sequence
from types import ModuleType

from sglang_instrument.patching.places.targets import find_target
from sglang_instrument.recording.safety.static_lookup import entries


def main_with_targets(
    modules: Collection[str], targets_of: Callable[[str], Sequence[Sequence[str]]]
) -> dict[str, ModuleType]:
    """Return that module by its name, if it has run the definitions of all its targets; else nothing.

    No import ends then: its code goes on, as the server that it starts.

    Args:
        modules: The names of modules with targets: each import of the process asks.
        targets_of: Returns the targets in a module, of each patch the candidates.
    """
    module = sys.modules.get("__main__")
    name = entries(entries(module).get("__spec__")).get("name")
    if type(name) is not str or name not in modules or name in sys.modules:
        return {}
    if module is None or not issubclass(type(module), ModuleType):
        return {}
    has_all = all(any(find_target(module, target) for target in targets) for targets in targets_of(name))
    return {name: module} if has_all else {}
