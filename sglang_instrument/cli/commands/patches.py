"""List the patch tables, and check which of their regions are found in a trainer's source."""

import argparse
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.table import Table as Grid

from sglang_instrument.cli.console import PipeConsole
from sglang_instrument.cli.tables import print_json, print_line, text
from sglang_instrument.errors import InstrumentError, TargetError
from sglang_instrument.patching.places.source_archives import SourceTree, open_tree
from sglang_instrument.patching.probes.plan import check_region
from sglang_instrument.patching.rewriting.check import Checked, check
from sglang_instrument.patching.rewriting.sites import Site, State
from sglang_instrument.patching.tables.reading import load_tables
from sglang_instrument.patching.tables.regions import PatchTable

HELP: Final = """\
List the patch tables, check which of their regions are found in the source of a trainer, or suggest a
first table for a class that no table knows. `status` shows what a run itself found.

    sglang-instrument patches list
    sglang-instrument patches suggest my_rollout.py:Agent --out my_tables/mine.toml
    sglang-instrument patches check                                  # the installed packages
    sglang-instrument patches check --trainer sglang --source sglang-0.5.21-py3-none-any.whl
    sglang-instrument patches check --patches my_tables --source ~/src/my_trainer
    sglang-instrument patches check --trainer sglang --mode rust     # SGLANG_RUST_SERVER=1

found       the region's statements are at these lines
missing     the function, or a name that marks the statements, is not in the source
ambiguous   two places match; refused: a probe cannot be put there, and the note says why
not here    missing, as the table expects for this version
never runs  with --mode: found, but the trainer in this mode never calls it

It imports nothing: it reads installed packages, and with --source folders, wheels and source archives. The
version of a checkout is read from its files; without one, that with the fewest missing regions is taken.
Exit code 1 if a region is not found that the table expects in that version. --json prints the tables, and
with `check` the "sites" of each.
`suggest` reads a class or a function, and proposes regions by the names of what it calls: step, request,
turns, calls of the engine, tools, rewards. `patches check` accepts the table as it stands; read it."""

_STYLES: Final[dict[State, str]] = {"found": "green", "missing": "red", "ambiguous": "red", "refused": "red"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `patches`."""
    parser.add_argument("action", choices=("list", "check", "suggest"), help="what to do")
    parser.add_argument("of", nargs="?", metavar="NAME", help="with suggest: FILE.py:Class or MODULE:Class")
    parser.add_argument("--trainer", action="append", metavar="NAME", help="only tables of this trainer")
    parser.add_argument(
        "--source", action="append", type=Path, metavar="PATH", help="a folder, wheel or archive to check"
    )
    parser.add_argument(
        "--patches", action="append", type=Path, metavar="DIR", help="a folder with tables of your own"
    )
    parser.add_argument("--mode", metavar="MODE", help="with check: what runs in a mode: rust")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="with suggest: write the table there, a new file"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """List the tables, check them, or suggest one."""
    if args.action == "suggest":
        return _suggest(args)
    if args.of is not None:
        raise InstrumentError(f"`patches {args.action}` takes no name; --trainer NAME chooses tables")
    tables = _load(args.trainer, args.patches or [])
    _check_mode(args.mode, tables)
    if args.action == "list":
        _list(tables, args.json)
        return 0
    trees: list[SourceTree | None] = [open_tree(path) for path in args.source or []] or [None]
    checked = [checked_table for tree in trees for checked_table in check(tables, tree)]
    read = [checked_table for checked_table in checked if checked_table.sites is not None]
    if not read:
        packages = ", ".join(sorted({table.package for table in tables}))
        where = " nor ".join(str(path) for path in args.source or ["the installed packages"])
        raise TargetError(f"no {packages} in {where}; --source takes a folder, a wheel or a source archive")
    if args.json:
        print_json([_as_json(checked_table, args.mode) for checked_table in checked])
    else:
        _print(read, [checked_table for checked_table in checked if checked_table.sites is None], args.mode)
    return 1 if any(_lacking(checked_table, args.mode) for checked_table in read) else 0


def _check_mode(mode: str | None, tables: Sequence[PatchTable]) -> None:
    """Raise for a mode that no table knows."""
    modes = {
        name: variable
        for table in tables
        for patch in table.patches
        for region in patch.regions
        for name, variable in region.not_in.items()
    }
    if mode is not None and mode not in modes:
        known = ", ".join(f"{name} ({variable}=1)" for name, variable in sorted(modes.items()))
        raise InstrumentError(f"no table knows a mode {mode!r}; there are: {known or 'none'}")


def _suggest(args: argparse.Namespace) -> int:
    """Print a table for a class that no table knows."""
    from sglang_instrument.patching.suggest.find_class import find_class
    from sglang_instrument.patching.suggest.measured import measured_by, without_measured
    from sglang_instrument.patching.suggest.proposal import propose
    from sglang_instrument.patching.suggest.write_table import write_table

    if args.of is None:
        raise InstrumentError("`patches suggest` needs FILE.py:Class or MODULE:Class")
    methods, tree = find_class(args.of, open_tree(args.source[0]) if args.source else None)
    proposals = propose(methods)
    measured = measured_by(methods, load_tables())
    if measured:
        proposals = without_measured(proposals)
        if not proposals.of:
            raise TargetError(f"{args.of}: {', '.join(measured)} measures it; there is nothing to add")
    if proposals.request is None:
        raise TargetError(f"{args.of}: no call of an engine is in it, such as engine.async_generate(...)")
    trainer = (args.trainer or [methods.module.partition(".")[0]])[0]
    text = write_table(methods, proposals, tree, trainer)
    if args.out is not None:
        _write_new(args.out, text)
        print_line(f"{args.out}: {sum(map(len, proposals.of.values()))} regions; read it, and edit")
    elif args.json:
        regions = {name: [region.event for region in mine] for name, mine in proposals.of.items()}
        print_json({"table": text, "regions": regions, "unknown": proposals.unknown})
    else:
        for line in text.splitlines():
            print_line(line)
    return 0


def _write_new(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise InstrumentError(f"{path}: {error.strerror}") from None


def _load(trainers: list[str] | None, folders: Sequence[Path]) -> list[PatchTable]:
    tables = load_tables(None, folders)
    known = sorted({table.trainer for table in tables})
    for name in trainers or []:
        if name not in known:
            raise InstrumentError(f"no tables of trainer {name!r}; there are: {', '.join(known)}")
    tables = [table for table in tables if trainers is None or table.trainer in trainers]
    for region in (region for table in tables for patch in table.patches for region in patch.regions):
        check_region(region)  # raises for an expression that is not in the language
    return tables


def _list(tables: Sequence[PatchTable], as_json: bool) -> None:
    rows: list[dict[str, Any]] = [
        {
            "table": table.name,
            "trainer": table.trainer,
            "package": table.package,
            "functions": len(table.patches),
            "regions": sum(len(patch.regions) for patch in table.patches),
            "events": list(
                dict.fromkeys(region.event for patch in table.patches for region in patch.regions)
            ),
        }
        for table in tables
    ]
    if as_json:
        print_json(rows)
        return
    grid = _grid("table", "trainer", "functions", "regions", "events")
    for row in rows:
        counts = (str(row["functions"]), str(row["regions"]))
        grid.add_row(*map(text, (row["table"], row["trainer"], *counts, ", ".join(row["events"]))))
    PipeConsole().print(grid)


def _print(read: Sequence[Checked], unread: Iterable[Checked], mode: str | None) -> None:
    """Print each table's sites; of several sources, only what was not found."""
    several = len({checked_table.source for checked_table in read}) > 1
    for checked_table in read:
        sites = checked_table.sites or ()
        never = [site for site in sites if mode in site.region.not_in]
        matched = sum(site.state == "found" for site in sites if site not in never)
        wanted = matched + len(_lacking(checked_table, mode))
        version = checked_table.version or "of unknown version"
        inferred = ", version inferred" if checked_table.version_inferred else ""
        table = checked_table.table
        counted = f"{matched} of {wanted} found" if wanted else "for other versions"
        if never:
            counted = f"{counted if wanted else 'nothing'}, {len(never)} never run in mode {mode}"
        print_line(f"{table.name} in {checked_table.source} ({table.package} {version}{inferred}): {counted}")
        shown = [site for site in sites if site.state != "found"] if several else sites
        if shown:
            PipeConsole().print(_sites(shown, mode))
    for name, count in Counter(checked_table.table.name for checked_table in unread).items():
        print_line(f"{name}: not in {count} source{'s' if count > 1 else ''}")


def _sites(sites: Iterable[Site], mode: str | None) -> Grid:
    grid = _grid("event", "function", "state", "lines", "note")
    for site in sites:
        lines = "" if site.lines is None else "{}-{}".format(*site.lines)
        as_told = site.expected or site.state == "found"
        state = text(site.state, _STYLES.get(site.state, "")) if as_told else text("not here", "dim")
        if mode in site.region.not_in:
            state = text("never runs", "dim")
        grid.add_row(text(site.region.event), text(site.target.name), state, lines, text(site.note))
    return grid


def _grid(*columns: str) -> Grid:
    grid = Grid(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        grid.add_column(column, justify="right" if column in ("functions", "regions", "lines") else "left")
    return grid


def _lacking(checked: Checked, mode: str | None) -> list[Site]:
    missing = (site for site in checked.sites or () if site.state != "found" and site.expected)
    return [site for site in missing if mode not in site.region.not_in]


def _as_json(checked: Checked, mode: str | None) -> dict[str, Any]:
    return {
        "table": checked.table.name,
        "trainer": checked.table.trainer,
        "source": checked.source,
        "version": checked.version,
        "version_inferred": checked.version_inferred,
        "sites": None if checked.sites is None else [_site_as_json(site, mode) for site in checked.sites],
    }


def _site_as_json(site: Site, mode: str | None) -> dict[str, Any]:
    return {
        "event": site.region.event,
        "target": str(site.target),
        "state": site.state,
        "lines": site.lines,
        "note": site.note,
        "expected": site.expected,
        "never_runs": mode in site.region.not_in,
    }
