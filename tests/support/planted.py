"""Write and import modules for a test; make probes that note the calls of rewritten code."""

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from sglang_instrument.patching.tables.reading import parse_table
from sglang_instrument.patching.tables.regions import PatchTable, Region


class Notes(list[tuple[Any, ...]]):
    """The calls of the probes, in order; also makes the probes."""

    def probe(self, region: Region) -> "NotingProbe":
        return NotingProbe(region, self)

    @property
    def events(self) -> list[str]:
        return [note[0] for note in self if note[1] == "open"]

    def of(self, event: str) -> list[tuple[Any, ...]]:
        return [note[1:] for note in self if note[0] == event]


class NotingProbe:
    def __init__(self, region: Region, notes: Notes) -> None:
        self.event, self.notes = region.event, notes
        self.enter_locals = tuple(region.enter.values())
        self.exit_locals = tuple(text for text in region.exit.values() if text != "result")
        self.wants_result = "result" in region.exit.values()
        self.wants_items = region.generator
        self.item_locals = () if region.ends is None else (region.ends,)
        self.error_locals = tuple(region.always.values())
        self.is_instant = False
        self.assigns = None

    def counted(self) -> "NotingProbe":
        return self

    def __call__(self, *values: Any) -> "NotingProbe":
        self.notes.append((self.event, "open", *values))
        return self

    def __enter__(self) -> "NotingProbe":
        return self

    def __exit__(self, error: Any, *rest: Any) -> None:
        self.notes.append((self.event, "close", *([] if error is None else [error.__name__])))

    def leave(self, *values: Any) -> None:
        self.notes.append((self.event, "leave", *values))

    def fail(self, *values: Any) -> None:
        self.notes.append((self.event, "fail", *values))

    def leave_result(self, result: Any, *values: Any) -> Any:
        self.notes.append((self.event, "result", result, *values))
        return result

    leave_early, leave_result_early = leave, leave_result

    def item(self, item: Any, *values: Any) -> Any:
        self.notes.append((self.event, "item", item, *values))
        return item

    def capture(self, field: str, value: Any) -> Any:
        self.notes.append((self.event, "capture", field, value))
        return value


def plant(folder: Path, source: str, name: str = "planted_module") -> ModuleType:
    """Write a module into a folder that is on `sys.path`, and import it anew."""
    (folder / f"{name}.py").write_text(source)
    sys.modules.pop(name, None)
    importlib.invalidate_caches()
    return importlib.import_module(name)


def table(*patches: dict[str, Any], module: str = "planted_module", name: str = "planted") -> PatchTable:
    """Return a table as if read from its file."""
    return parse_table(name, {"trainer": "planted", "module": module, "patch": list(patches)})


def snapshot(*owners: Any) -> list[Any]:
    """Return the raw entries of modules and classes, with code, defaults and closures of functions."""
    entries = [dict(vars(owner)) for owner in owners]
    functions = [
        (value.__code__, value.__defaults__, value.__kwdefaults__, value.__closure__, dict(vars(value)))
        for owner in entries
        for value in owner.values()
        if hasattr(value, "__code__")
    ]
    return [entries, functions]
