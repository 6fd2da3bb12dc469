"""The content of a patch table: functions, their regions, and what to record of them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from sglang_instrument.patching.places.anchors import Anchors
from sglang_instrument.patching.places.versions import Requirement
from sglang_instrument.schema import Phase

Emit = Literal["span", "enter", "exit"]


class Origin(NamedTuple):
    """The place of a region in the tables, counted from 0."""

    table: str
    patch: int
    region: int


class Target(NamedTuple):
    """A function: its module, and its name in it ("Class.method")."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}:{self.name}"


class KeywordCapture(NamedTuple):
    """A keyword argument of a call inside the region; the probe records it as `field` during the call."""

    field: str
    callee: str
    argument: str


class Overriding(NamedTuple):
    """A method that overrides, or is overridden: its name, and the parameter that gets the object."""

    method: str
    receiver: str


@dataclass(frozen=True)
class Region:
    """The statements of a function that make one event, and what to record of them.

    `enter`, `exit`, `always`, `bind` and `process` map names to field expressions; the probe reads `always`
    together with `exit`, and also after an exception. The probe records a run only if `when` is true, and
    only in processes in which `leader` is true; with `every`, at most one run in so many seconds. A generator
    region ends at the item for which `ends` is true.
    A region with `tracker` records nothing: where it begins, it adds numbers of finished steps to a local.
    A region with `settings` records nothing either: where it begins, it keeps the settings in locals.
    `not_in` are the modes of the trainer in which the function never runs, each with the environment variable
    that turns it on.
    With `overriding`, several methods have the region; of those that run for one object, one inside the
    other, only the outermost is recorded.
    """

    origin: Origin
    event: str
    anchors: Anchors
    emit: Emit = "span"
    enter: Mapping[str, str] = field(default_factory=dict)
    exit: Mapping[str, str] = field(default_factory=dict)
    always: Mapping[str, str] = field(default_factory=dict)
    bind: Mapping[str, str] = field(default_factory=dict)
    process: Mapping[str, str] = field(default_factory=dict)
    when: str | None = None
    leader: str | None = None
    not_in: Mapping[str, str] = field(default_factory=dict)
    ends: str | None = None
    capture: tuple[KeywordCapture, ...] = ()
    generator: bool = False
    root: bool = False
    count_steps: bool = False
    new_request: bool = False
    every: float | None = None
    sync: bool | None = None
    phase: Phase | None = None
    tracker: Mapping[str, str] | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    requires: Requirement | None = None
    overriding: Overriding | None = None

    @property
    def is_whole_body(self) -> bool:
        """Whether the region is the whole function, so that a wrapper can measure it."""
        return not any(self.anchors) and self.makes_event

    @property
    def makes_event(self) -> bool:
        """Whether the region records an event, and does not only read settings or feed a tracker."""
        return self.tracker is None and not self.settings

    @property
    def is_expression(self) -> bool:
        """Whether the region is an expression: a call, or the entering of a `with` block."""
        return bool(self.anchors.call or self.anchors.entering)


@dataclass(frozen=True)
class Patch:
    """A function and its regions.

    `targets` are candidates: the patcher takes the first that exists in each module.
    """

    targets: tuple[Target, ...]
    regions: tuple[Region, ...]


@dataclass(frozen=True)
class PatchTable:
    """One TOML file.

    `name` is "sglang/engine", for example, for a shipped table, else the file's path. `package` is the
    distribution whose version the requirements compare. `engine_detail` is the lowest setting at which the
    table is applied, `setting` a setting that has to be on; None means always.
    """

    name: str
    trainer: str
    package: str
    patches: tuple[Patch, ...]
    engine_detail: str | None = None
    setting: str | None = None

    def is_wanted(self, engine_detail: str, scalars: bool) -> bool:
        """Return whether the table is applied at these settings."""
        if self.setting is not None and not scalars:
            return False
        return self.engine_detail in (None, engine_detail) or engine_detail == "batches"

    def for_all_ranks(self) -> "PatchTable":
        """Return the table without `leader` conditions: every process records its own runs."""
        patches = [
            replace(patch, regions=tuple(replace(region, leader=None) for region in patch.regions))
            for patch in self.patches
        ]
        return replace(self, patches=tuple(patches))

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules that hold targets, each once."""
        return tuple(dict.fromkeys(target.module for patch in self.patches for target in patch.targets))


def targets_in(tables: Iterable[PatchTable], module: str) -> list[list[str]]:
    """Return the names of the targets in a module, of each patch the candidates."""
    patches = (patch for table in tables for patch in table.patches)
    named = ([target.name for target in patch.targets if target.module == module] for patch in patches)
    return [names for names in named if names]
