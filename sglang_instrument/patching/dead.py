"""Name the fields of a region that its function can never give: they begin at locals that it lacks."""

from collections.abc import Mapping
from dataclasses import replace

from sglang_instrument.errors import TableError
from sglang_instrument.patching.anchors import in_quotes
from sglang_instrument.patching.bindings import Bindings
from sglang_instrument.patching.fields import Expression, Moment, Path, parsed
from sglang_instrument.patching.sites import Site
from sglang_instrument.patching.tables import Region


def with_dead_fields(site: Site, bindings: Bindings) -> Site:
    """Add to the note of a site that was found the fields that it will never have."""
    dead = dead_fields(site.region, bindings) if site.state == "found" else {}
    if not dead:
        return site
    bare = {text for text in dead.values() if text.isidentifier()}
    texts = f"; a text is written {', '.join(map(in_quotes, sorted(bare)))}" if bare else ""
    notes = [site.note, f"no local for {', '.join(dead)}{texts}"]
    return replace(site, note="; ".join(note for note in notes if note))


def dead_fields(region: Region, bindings: Bindings) -> dict[str, str]:
    """Return, as written, the fields whose every alternative begins at a local that is not in `bindings`."""
    leaving: Moment = "item" if region.generator else "exit"
    read: list[tuple[Mapping[str, str], Moment]] = [
        ({"when": region.when} if region.when else {}, "enter"),
        ({"leader": region.leader} if region.leader else {}, "enter"),
        (region.bind, "enter"),
        (region.enter, "enter"),
        (region.exit, leaving),
        (region.always, leaving),
    ]
    return {
        name: text
        for fields, moment in read
        for name, text in fields.items()
        if _is_dead(text, moment, bindings)
    }


def _is_dead(text: str, moment: Moment, bindings: Bindings) -> bool:
    try:
        expression = parsed(text, moment)
    except TableError:  # said where the region's probe is made
        return False
    return all(_begins_nowhere(expression, value, bindings) for value in expression.alternatives)


def _begins_nowhere(expression: Expression, value: object, bindings: Bindings) -> bool:
    return isinstance(value, Path) and not expression.is_root(value) and not bindings.has(value.root)
