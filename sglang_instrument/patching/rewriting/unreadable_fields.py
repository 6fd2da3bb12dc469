"""Name the fields of a region that can never be read in its function."""

from collections.abc import Mapping
from dataclasses import replace

from sglang_instrument.errors import TableError
from sglang_instrument.patching.places.anchors import in_quotes
from sglang_instrument.patching.places.bindings import Bindings
from sglang_instrument.patching.rewriting.sites import Site
from sglang_instrument.patching.tables.field_language import Expression, Moment, Path, parsed
from sglang_instrument.patching.tables.regions import Region


def with_unreadable_fields(site: Site, bindings: Bindings) -> Site:
    """Add the fields that can never be read to the note of a found site."""
    if site.state != "found":
        return site
    notes = [site.note, _describe_unreadable(unreadable_fields(site.region, bindings))]
    unread = fields_not_read(site.region, bindings)
    if unread:
        why = "the function reads its own locals(), so the rewriter may add none"
        notes.append(f"{why}; fields not read: {', '.join(unread)}")
    return replace(site, note="; ".join(note for note in notes if note))


def unreadable_fields(region: Region, bindings: Bindings) -> dict[str, str]:
    """Return the fields, as written, of which every alternative begins at a name that is not a local."""
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
        if _is_unreadable(text, moment, bindings)
    }


def fields_not_read(region: Region, bindings: Bindings) -> list[str]:
    """Return the exit fields that cannot be read because the function reads its own locals."""
    if not bindings.are_read or region.is_expression:
        return []
    return [name for name, text in region.exit.items() if not _survives_error(text)]


def _describe_unreadable(unreadable: Mapping[str, str]) -> str:
    if not unreadable:
        return ""
    bare = {text for text in unreadable.values() if text.isidentifier()}
    texts = f"; write a string as {', '.join(map(in_quotes, sorted(bare)))}" if bare else ""
    return f"no local for {', '.join(unreadable)}{texts}"


def _survives_error(text: str) -> bool:
    try:
        return parsed(text, "exit").survives_error
    except TableError:  # reported when the region's probe is made
        return True


def _is_unreadable(text: str, moment: Moment, bindings: Bindings) -> bool:
    try:
        expression = parsed(text, moment)
    except TableError:  # reported when the region's probe is made
        return False
    return all(_begins_at_no_local(expression, value, bindings) for value in expression.alternatives)


def _begins_at_no_local(expression: Expression, value: object, bindings: Bindings) -> bool:
    return isinstance(value, Path) and not expression.is_root(value) and not bindings.has(value.root)
