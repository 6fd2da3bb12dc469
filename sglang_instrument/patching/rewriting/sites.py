"""Find the sites of a patch's regions in a function, and say why a region has none."""

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple, get_args

from sglang_instrument.patching.places.anchors import (
    AnchorsAmbiguous,
    AnchorsMissing,
    FunctionDef,
    FunctionOutline,
    Statements,
    walk_own,
)
from sglang_instrument.patching.places.bindings import Bindings
from sglang_instrument.patching.rewriting.expression_regions import (
    MeasuredExpression,
    find_expressions,
    lines_of,
)
from sglang_instrument.patching.rewriting.rewrite import SCOPES, find_captured, overlaps
from sglang_instrument.patching.tables.regions import Patch, Region, Target

State = Literal["found", "pending", "refused", "changed", "ambiguous", "no-source", "missing"]
#: From best to worst; a region with several candidates shows its best state.
STATES: Final[tuple[State, ...]] = get_args(State)


@dataclass(frozen=True)
class Site:
    """The result for one region in one function.

    `state` is "found"; "pending": the module is not imported yet; "refused": found, but a probe cannot be put
    there; "changed": the source on disk differs from the running code; "ambiguous"; "no-source"; "missing".
    `lines` are the first and last line. `expected` is False if `requires` excludes this version.
    """

    region: Region
    target: Target
    state: State
    lines: tuple[int, int] | None = None
    note: str = ""
    expected: bool = True


class RegionRequest(NamedTuple):
    """A region to place, the target that names its function, and the installed version."""

    region: Region
    target: Target
    version: str | None = None

    def site(self, state: State, lines: tuple[int, int] | None = None, note: str = "") -> Site:
        """Return the site of the region."""
        requires = self.region.requires
        expected = requires is None or requires.admits(self.version)
        return Site(self.region, self.target, state, lines, note, expected)


@dataclass(frozen=True)
class PlacedRegion:
    """A site, and the statements or expressions that were found."""

    site: Site
    statements: Statements | None = None
    expressions: tuple[MeasuredExpression, ...] = ()

    @property
    def is_found(self) -> bool:
        """Whether there is code to put a probe on."""
        return self.statements is not None or bool(self.expressions)

    def refused(self, note: str) -> "PlacedRegion":
        """Return the same region as refused, without its code."""
        return PlacedRegion(replace(self.site, state="refused", note=note))


def place(
    definition: FunctionDef, wanted: Iterable[RegionRequest], bindings: Bindings, is_awaited: bool = False
) -> list[PlacedRegion]:
    """Find the regions of one function; they may come from several tables.

    Args:
        definition: the function; its tree is not changed.
        wanted: the regions; variants of one event have different `requires`.
        bindings: the function's locals.
        is_awaited: whether its `yield`s are awaits: `types.coroutine` made it a coroutine.
    """
    outline = FunctionOutline(definition)
    placed = [_resolve(outline, request, bindings, is_awaited) for request in wanted]
    return _without_overlaps(_without_rivals(placed))


def without_function(wanted: Iterable[RegionRequest], state: State, note: str) -> list[Site]:
    """Return sites for regions whose function is not available."""
    return [request.site(state, note=note) for request in wanted]


def best_sites(patch: Patch, sites: Sequence[Site]) -> list[Site]:
    """Return, for each region, all sites where it was found, else the best site of its candidates."""
    chosen: list[Site] = []
    for region in patch.regions:
        ours = sorted(
            (site for site in sites if site.region.origin == region.origin),
            key=lambda site: STATES.index(site.state),
        )
        placed_sites = [site for site in ours if site.state == "found"]
        chosen += placed_sites or ours[:1]
    return chosen


def _resolve_expression(definition: FunctionDef, wanted: RegionRequest) -> PlacedRegion:
    expressions = tuple(find_expressions(definition, wanted.region.anchors))
    if not expressions:
        names = " | ".join(wanted.region.anchors.call or wanted.region.anchors.entering)
        kind = "call of" if wanted.region.anchors.call else "block entered with"
        return PlacedRegion(wanted.site("missing", note=f"no {kind} {names}"))
    note = f"{len(expressions)} places" if len(expressions) > 1 else ""
    return PlacedRegion(wanted.site("found", lines_of(expressions), note), expressions=expressions)


def _resolve(
    outline: FunctionOutline, wanted: RegionRequest, bindings: Bindings, is_awaited: bool
) -> PlacedRegion:
    if wanted.region.is_expression:
        return _resolve_expression(outline.definition, wanted)
    try:
        statements = outline.resolve(wanted.region.anchors)
    except AnchorsMissing as reason:
        return PlacedRegion(wanted.site("missing", note=str(reason)))
    except AnchorsAmbiguous as reason:
        return PlacedRegion(wanted.site("ambiguous", note=str(reason)))
    objection = _objection(bindings, wanted.region, statements, is_awaited)
    if objection:
        return PlacedRegion(wanted.site("refused", statements.lines, objection))
    note = "empty region: the probe is between two statements" if statements.start == statements.stop else ""
    return PlacedRegion(wanted.site("found", statements.lines, note), statements)


def _objection(bindings: Bindings, region: Region, statements: Statements, is_awaited: bool) -> str:
    """Say why no probe can measure these statements; "" if one can."""
    kinds = {type(node) for statement in statements.nodes for node in walk_own(statement, opaque=SCOPES)}
    if kinds & {ast.Yield, ast.YieldFrom} and not (region.generator or is_awaited):
        return "other code runs during a `yield` in the region; set generator = true to measure it"
    if (region.generator or region.capture or region.always) and bindings.are_read:
        return "the function reads its own locals(), so the rewriter may add none"
    data = (region.tracker or {}).get("data")
    if data is not None and data not in bindings.sure_at(statements.block, statements.start):
        return (
            f"tracker: no local {data!r} has a value where the region begins, so there is nothing to add to"
        )
    for capture in region.capture:
        count = len(find_captured(statements, capture))
        if count != 1:
            return f"capture {capture.callee}({capture.argument}) occurs {count} times, must be once"
    return ""


def _without_rivals(placed: list[PlacedRegion]) -> list[PlacedRegion]:
    """Keep one variant of each event; variants are regions of one event with different `requires`.

    Take the first found variant for this version, else the first that was found, and those of its `requires`.
    """
    taken: dict[str, PlacedRegion] = {}
    for region in sorted(placed, key=lambda region: (not region.is_found, not region.site.expected)):
        if region.site.region.requires is not None:
            taken.setdefault(region.site.region.event, region)
    chosen = {event: region.site.region.requires for event, region in taken.items()}
    return [
        region
        if region.site.region.requires in (None, chosen.get(region.site.region.event))
        else PlacedRegion(
            replace(region.site, state="missing", note="another variant of the event is used", expected=False)
        )
        for region in placed
    ]


def _without_overlaps(placed: list[PlacedRegion]) -> list[PlacedRegion]:
    accepted: list[PlacedRegion] = []
    for region in placed:
        rival = next((other for other in accepted if _overlap(region, other)), None)
        if rival is not None:
            note = f"overlaps {rival.site.region.event}, lines {rival.site.lines}; neither contains the other"
            accepted.append(region.refused(note))
        else:
            accepted.append(region)
    return accepted


def _overlap(region: PlacedRegion, other: PlacedRegion) -> bool:
    return (
        region.statements is not None
        and other.statements is not None
        and overlaps(region.statements, other.statements)
    )
