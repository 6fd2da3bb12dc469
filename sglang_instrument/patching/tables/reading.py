"""Read patch tables from TOML files.

`patches/README.md` describes the language. The reader is strict, so that the author of a table sees a mistake
at once; field expressions are checked when they are compiled.
"""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Final, cast, get_args

from sglang_instrument.errors import TableError
from sglang_instrument.patching.places.anchors import Anchors, parse_anchors
from sglang_instrument.patching.places.versions import Requirement
from sglang_instrument.patching.tables.entry import Entry
from sglang_instrument.patching.tables.field_checks import unknown_fields
from sglang_instrument.patching.tables.field_language import BINDABLE
from sglang_instrument.patching.tables.regions import (
    Emit,
    KeywordCapture,
    Origin,
    Patch,
    PatchTable,
    Region,
    Target,
)
from sglang_instrument.patching.tables.shipped import ABOUT, read_table, shipped_tables, trainer_of
from sglang_instrument.schema import PHASES, Phase

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

FieldSets = Mapping[str, Mapping[str, str]]

_TABLE_KEYS: Final = frozenset(
    {"trainer", "package", "module", "requires", "engine_detail", "setting", "modes", "fields", "patch"}
)
_PATCH_KEYS: Final = frozenset({"target", "module", "requires", "leader", "not_in", "region"})
_ANCHOR_KEYS: Final = frozenset({"from", "after", "through", "before", "at", "block", "call", "entering"})
_REGION_KEYS: Final = _ANCHOR_KEYS | {
    *("event", "emit", "requires", "phase", "sync", "root", "generator", "count_steps", "new_request"),
    *(
        "enter",
        "exit",
        "always",
        "bind",
        "process",
        "when",
        "ends",
        "capture",
        "tracker",
        "settings",
        "every",
    ),
}
#: The keys that a region with `tracker` may have: it records nothing.
_WITH_TRACKER: Final = _ANCHOR_KEYS - {"call", "entering"} | {"event", "phase", "requires", "tracker"}
#: The keys that a region with `settings` may have, for the same reason.
_WITH_SETTINGS: Final = _WITH_TRACKER - {"tracker"} | {"settings"}
_TRACKER_KEYS: Final = frozenset({"data", "step", "late", "late_to", "late_log"})
#: Ids of the whole process that a region may set.
OF_PROCESS: Final = ("role", "worker", "tp")
#: Values of `engine_detail`: the lowest setting at which a table is applied.
_ENGINE_DETAILS: Final = ("requests", "batches")
#: Settings that a table may need to be on.
_SETTINGS: Final = ("scalars",)

_TARGET: Final = re.compile(r"(?:(?P<module>[A-Za-z_][\w.]*):)?(?P<name>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)")
_CAPTURE: Final = re.compile(r"(?P<callee>[A-Za-z_]\w*)\((?P<argument>[A-Za-z_]\w*)\)")


def load_tables(trainers: Sequence[str] | None = None, folders: Sequence[Path] = ()) -> list[PatchTable]:
    """Read the shipped tables and those in the user's `folders`.

    Args:
        trainers: names of the trainers to keep; None keeps all.
        folders: folders that hold `<trainer>/<what>.toml` or `<what>.toml`.

    Raises:
        TableError: a table breaks the rules of the language, or a folder does not exist.
    """
    shipped = (name for name in shipped_tables() if trainers is None or trainer_of(name) in trainers)
    tables = [load_table(name) for name in shipped]  # parsing all takes each process 40 ms
    tables += tables_below(folders)
    return [table for table in tables if trainers is None or table.trainer in trainers]


def tables_below(folders: Sequence[Path]) -> list[PatchTable]:
    """Read the tables in the user's folders; errors are those of `load_tables`."""
    tables: list[PatchTable] = []
    for folder in folders:
        if not folder.is_dir():
            raise TableError(f"{folder}: not a folder of patch tables")
        paths = (path for path in sorted(folder.rglob("*.toml")) if path.stem != ABOUT)
        tables += [load_table(str(path)) for path in paths]
    return tables


def load_table(name: str) -> PatchTable:
    """Return a table by its name: "sglang/engine", or a path that ends in ".toml".

    Raises:
        TableError: there is no such table, or it breaks the rules of the language.
    """
    shown = name if name.endswith(".toml") else f"patches/{name}.toml"
    try:
        return _parsed(name, read_table(name), shown)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise TableError(f"{shown}: {error}") from None


@lru_cache(256)  # tables; an edited one is another
def _parsed(name: str, text: str, shown: str) -> PatchTable:
    return parse_table(name, tomllib.loads(text), shown)


def parse_table(name: str, content: object, shown: str | None = None) -> PatchTable:
    """Turn the content of a TOML file into a table.

    Args:
        name: the table's name; pickled probes carry it.
        content: the result of the TOML parser.
        shown: the file's name in messages; default is `name`.

    Raises:
        TableError: an unknown key, a wrong type, an invalid anchor or target.
    """
    entry = Entry(shown or name, content, _TABLE_KEYS)
    trainer = _required(entry, "trainer")
    sets = entry.below("fields")
    fields = {key: sets.expressions(key) for key in entry.names("fields")}
    modes = entry.expressions("modes")
    requires = _parse_requires(entry, None)
    patches = tuple(
        _parse_patch(patch, entry.text("module"), requires, fields, modes, Origin(name, index, 0))
        for index, patch in enumerate(entry.entries("patch", "patch", _PATCH_KEYS))
    )
    if not patches:
        raise entry.error("has no [[patch]]")
    for region, reason in unknown_fields(region for patch in patches for region in patch.regions):
        raise entry.error(f"patch {region.origin.patch + 1}: region {region.origin.region + 1}: {reason}")
    detail = entry.choice("engine_detail", _ENGINE_DETAILS)
    setting = entry.choice("setting", _SETTINGS)
    return PatchTable(name, trainer, entry.text("package") or trainer, patches, detail, setting)


def _parse_patch(
    entry: Entry,
    module: str | None,
    requires: Requirement | None,
    fields: FieldSets,
    modes: Mapping[str, str],
    origin: Origin,
) -> Patch:
    targets = tuple(
        _parse_target(entry, text, entry.text("module") or module) for text in entry.texts("target")
    )
    if not targets:
        raise entry.error("target is missing: give 'Class.method' or a list of candidates")
    requires = _parse_requires(entry, requires)
    leader, not_in = entry.text("leader"), _parse_not_in(entry, modes)
    regions = tuple(
        replace(
            _parse_region(region, requires, fields, origin._replace(region=index)),
            leader=leader,
            not_in=not_in,
        )
        for index, region in enumerate(entry.entries("region", "region", _REGION_KEYS))
    )
    if not regions:
        raise entry.error("has no region")
    return Patch(targets, regions)


def _parse_not_in(entry: Entry, modes: Mapping[str, str]) -> Mapping[str, str]:
    """Return the modes in which a function never runs, each with the variable that turns it on."""
    for mode in entry.texts("not_in"):
        if mode not in modes:
            raise entry.error(
                f"not_in: {mode!r} is no mode of the table: {', '.join(modes) or 'it has none'}"
            )
    return {mode: modes[mode] for mode in entry.texts("not_in")}


def _parse_target(entry: Entry, text: str, module: str | None) -> Target:
    match = _TARGET.fullmatch(text)
    if match is None:
        raise entry.error(f"target must be 'Class.method' or 'module:Class.method', got {text!r}")
    module = match["module"] or module
    if module is None:
        raise entry.error(
            f"target {text!r} names no module, and neither the patch nor the table has the key module"
        )
    return Target(module, match["name"])


def _parse_region(entry: Entry, requires: Requirement | None, fields: FieldSets, origin: Origin) -> Region:
    region = Region(
        origin=origin,
        event=_required(entry, "event"),
        anchors=_parse_anchors(entry),
        emit=cast("Emit", entry.choice("emit", get_args(Emit)) or "span"),
        enter=entry.expressions("enter", fields),
        exit=entry.expressions("exit", fields),
        always=entry.expressions("always", fields),
        bind=entry.expressions("bind", fields),
        process=entry.expressions("process", fields),
        when=entry.text("when"),
        ends=entry.text("ends"),
        capture=tuple(_parse_captures(entry)),
        generator=entry.flag("generator") or False,
        root=entry.flag("root") or False,
        count_steps=entry.flag("count_steps") or False,
        new_request=entry.flag("new_request") or False,
        every=entry.seconds("every"),
        sync=entry.flag("sync"),
        phase=cast("Phase | None", entry.choice("phase", PHASES)),
        tracker=_parse_tracker(entry),
        settings=_parse_settings(entry),
        requires=_parse_requires(entry, requires),
    )
    for name in region.bind:
        if name not in BINDABLE:
            raise entry.error(f"bind.{name}: only {', '.join(BINDABLE)} can be bound")
    for name in region.process:
        if name not in OF_PROCESS:
            raise entry.error(f"process.{name}: only {', '.join(OF_PROCESS)} can be set for a process")
    if region.emit != "span" and (
        region.generator or region.bind or region.count_steps or region.new_request
    ):
        raise entry.error(
            f"emit = {region.emit!r} makes an instant event: "
            "generator, bind, count_steps and new_request need a span"
        )
    if region.is_expression and (region.emit != "span" or region.generator or region.capture):
        raise entry.error("call and entering make spans: emit, generator and capture are not allowed")
    if region.every is not None and region.emit != "enter":
        raise entry.error("every needs emit = 'enter': of a span, all runs are recorded")
    if region.always and (region.emit != "span" or region.is_expression):
        raise entry.error("always needs a span of statements: emit, call and entering are not allowed")
    if region.ends is not None and not region.generator:
        raise entry.error("ends needs generator = true")
    return region


def _parse_tracker(entry: Entry) -> Mapping[str, str] | None:
    """Return what a region hands to a tracker; None if it measures an event, as others do."""
    if "tracker" not in entry:
        return None
    for key in _REGION_KEYS - _WITH_TRACKER:
        if key in entry:
            raise entry.error(f"{key} has no meaning with tracker, which records nothing")
    tracker = entry.below("tracker", _TRACKER_KEYS)
    given = {key: text for key in _TRACKER_KEYS if (text := tracker.text(key)) is not None}
    if given and not {"data", "step"} <= given.keys():
        raise tracker.error("needs both data and step, or nothing")
    if not given.get("data", "data").isidentifier():
        raise tracker.error(f"data must be the name of a local, got {given['data']!r}")
    return given


def _parse_settings(entry: Entry) -> Mapping[str, str]:
    """Return the objects whose settings a region keeps, by name; none if it measures an event."""
    if "settings" not in entry:
        return {}
    for key in _REGION_KEYS - _WITH_SETTINGS:
        if key in entry:
            raise entry.error(f"{key} has no meaning with settings, which records no event")
    holders = entry.expressions("settings")
    for name, path in holders.items():
        if not all(part.isidentifier() for part in path.split(".")):
            raise entry.error(
                f"settings.{name} must be a local, or its attributes: 'self.config', got {path!r}"
            )
    return holders


def _parse_requires(entry: Entry, around: Requirement | None) -> Requirement | None:
    """Return an entry's own requirement combined with that of the enclosing patch or table."""
    requirement = entry.parsed("requires", Requirement)
    if around is None or requirement is None:
        return around or requirement
    return Requirement(f"{around.text},{requirement.text}")


def _parse_anchors(entry: Entry) -> Anchors:
    try:
        return parse_anchors({key: text for key in _ANCHOR_KEYS if (text := entry.text(key)) is not None})
    except ValueError as error:
        raise entry.error(str(error)) from None


def _parse_captures(entry: Entry) -> Iterator[KeywordCapture]:
    for field_name, text in entry.expressions("capture").items():
        match = _CAPTURE.fullmatch(text)
        if match is None:
            raise entry.error(f"capture.{field_name} must be 'callee(keyword)', got {text!r}")
        yield KeywordCapture(field_name, match["callee"], match["argument"])


def _required(entry: Entry, key: str) -> str:
    text = entry.text(key)
    if text is None:
        raise entry.error(f"{key} is missing")
    return text
