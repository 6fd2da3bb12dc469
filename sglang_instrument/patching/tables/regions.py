"""What a patch table says: functions, their regions, and what is recorded of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from sglang_instrument.patching.places.anchors import Anchors
from sglang_instrument.patching.places.versions import Requirement
from sglang_instrument.schema import Phase

Emit = Literal["span", "enter", "exit"]


class Origin(NamedTuple):
    """Where a region stands: by this a probe travels to another process."""

    table: str
    patch: int
    region: int


class Target(NamedTuple):
    """A function: its module, and its name in it ("Class.method")."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}:{self.name}"


class Capture(NamedTuple):
    """The keyword argument of a call inside the region that is recorded as `field` while it is passed."""

    field: str
    callee: str
    argument: str


@dataclass(frozen=True)
class Region:
    """The statements of a function that are one event, and what is recorded of them.

    `enter`, `exit`, `always`, `bind` and `process` map names to field expressions; those of `always` are read
    with those of `exit`, after an exception, too. `when` is the condition under which a run is recorded at
    all, `leader` that under which this process records it; `ends` is true for the item with which a
    generator region ends.
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
    ends: str | None = None
    capture: tuple[Capture, ...] = ()
    generator: bool = False
    root: bool = False
    count_steps: bool = False
    new_request: bool = False
    sync: bool | None = None
    phase: Phase | None = None
    requires: Requirement | None = None

    @property
    def is_whole_body(self) -> bool:
        """Whether the region is the function itself, so that a wrapper can stand for it."""
        return not any(self.anchors)

    @property
    def is_expression(self) -> bool:
        """Whether the region is a call, or the entering of a block, wherever it stands."""
        return bool(self.anchors.call or self.anchors.entering)


@dataclass(frozen=True)
class Patch:
    """A function and its regions.

    `targets` are candidates: in each module the first that exists is taken.
    """

    targets: tuple[Target, ...]
    regions: tuple[Region, ...]


@dataclass(frozen=True)
class Table:
    """One TOML file.

    `name` is "sglang/engine" for a table that ships with the package, else the file's path; `package` is the
    distribution whose version the requirements speak of; `engine_detail` the least setting at which the table
    is applied, None where it always is.
    """

    name: str
    trainer: str
    package: str
    patches: tuple[Patch, ...]
    engine_detail: str | None = None

    def is_wanted(self, engine_detail: str) -> bool:
        """Return whether the table is applied where the setting `engine_detail` is this."""
        return self.engine_detail in (None, engine_detail) or engine_detail == "batches"

    def for_all_ranks(self) -> "Table":
        """Return the table without its leaders: every process records what it does."""
        patches = [
            replace(patch, regions=tuple(replace(region, leader=None) for region in patch.regions))
            for patch in self.patches
        ]
        return replace(self, patches=tuple(patches))

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules that hold targets, each once."""
        return tuple(dict.fromkeys(target.module for patch in self.patches for target in patch.targets))
