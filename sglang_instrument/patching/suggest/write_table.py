"""Write proposed regions as a TOML table that `patches check` accepts, with what to look at in comments."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace

from sglang_instrument.patching.places.source_archives import SourceTree
from sglang_instrument.patching.probes.plan import check_region
from sglang_instrument.patching.rewriting.check import check
from sglang_instrument.patching.suggest.methods import Methods
from sglang_instrument.patching.suggest.proposal import Proposal, Proposals
from sglang_instrument.patching.tables.reading import parse_table

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]


def write_table(methods: Methods, proposals: Proposals, tree: SourceTree, trainer: str) -> str:
    """Return the text of a table whose regions are all found; what cannot be placed is named in comments."""
    placed = replace(proposals, of={name: list(mine) for name, mine in proposals.of.items()})
    left_out: list[str] = []
    while True:
        text = "\n".join(_lines(methods, placed, trainer, left_out)) + "\n"
        table = parse_table("suggested", tomllib.loads(text))
        for region in (region for patch in table.patches for region in patch.regions):
            check_region(region)
        [checked] = check([table], tree)
        bad = {(s.target.name, s.region.event): s for s in checked.sites or () if s.state != "found"}
        if not bad:
            return text
        for (target, event), site in bad.items():
            name = target.rpartition(".")[2]
            placed.of[name] = [proposal for proposal in placed.of[name] if proposal.event != event]
            left_out.append(f"{target}: {event} was left out: {site.note or site.state}")


def _lines(methods: Methods, proposals: Proposals, trainer: str, left_out: list[str]) -> Iterator[str]:
    of = f"{methods.module}:{methods.target(proposals.request or '') if not methods.owner else methods.owner}"
    yield f"# A first table for {of}. Names suggested these regions: read each, and edit."
    yield "# Check it:  sglang-instrument patches check --patches FOLDER"
    yield "# Use it:    sglang-instrument run --set patches=FOLDER -- python train.py"
    yield "# The language: patches/README.md of sglang-instrument, or docs/how-to/new-trainer.md"
    for problem in [*proposals.unknown, *left_out]:
        yield f"# To do: {problem}"
    yield ""
    yield f"trainer = {_text(trainer)}"
    yield f"module = {_text(methods.module)}"
    for name, mine in proposals.of.items():
        if mine:
            yield ""
            yield "[[patch]]"
            yield f"target = {_text(methods.target(name))}"
            for proposal in mine:
                yield ""
                yield from _region(proposal)


def _region(proposal: Proposal) -> Iterator[str]:
    first, last = proposal.lines
    yield f"# Line {first}: {proposal.why}" if first == last else f"# Lines {first} to {last}: {proposal.why}"
    yield "[[patch.region]]"
    yield f"event = {_text(proposal.event)}"
    for key, text in proposal.anchors.items():
        yield f"{key} = {_text(text)}"
    for key in proposal.flags:
        yield f"{key} = true"
    for key, fields in (("bind", proposal.bind), ("enter", proposal.enter)):
        if fields:
            yield f"{key} = {_inline(fields)}"
    if proposal.exit:
        yield "[patch.region.exit]"
        yield from (f"{name} = {_text(text)}" for name, text in proposal.exit.items())


def _inline(fields: Mapping[str, str]) -> str:
    return "{ " + ", ".join(f"{name} = {_text(text)}" for name, text in fields.items()) + " }"


def _text(text: str) -> str:
    """Return a TOML string; paths with keys in double quotes become literal strings."""
    return f"'{text}'" if '"' in text and "'" not in text else '"' + text.replace('"', '\\"') + '"'
