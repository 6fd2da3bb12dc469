"""Write reference/support-matrix.md: `python docs/support_matrix.py`; wheels come from the registry, once.

Every version that the package index has, from the oldest that is promised on, is read and not imported.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sglang_instrument.patching.places.source_archives import open_tree
from sglang_instrument.patching.rewriting.check import check
from sglang_instrument.patching.rewriting.sites import Site
from sglang_instrument.patching.tables.about import About, read_abouts
from sglang_instrument.patching.tables.reading import load_tables
from sglang_instrument.patching.tables.regions import PatchTable

ROOT: Final = Path(__file__).resolve().parents[1]
WHEELS: Final = ROOT / ".envs" / "wheels"
PAGE: Final = ROOT / "docs" / "reference" / "support-matrix.md"

TOP: Final = """\
# Support matrix

`python docs/support_matrix.py` writes this page from every version in the package index. It reads the source
of each version without importing it, as `sglang-instrument patches check --source WHEEL` does.

| word | meaning |
|---|---|
| found | the version has the statements that the event is made of |
| has none | the version lacks what the event measures, and the table says so |
| lost | the table expects the statements, and they are not there |
| tested | what was run, beyond reading the source |

In a version that is not listed, whatever resolves is recorded; `status()` and `sglang-instrument status` name
the rest.

Beside these, the tests run with Ray 2.60 and PyTorch 2.13; those of recording and patching also ran with
PyTorch 2.15. Of trainers that are in no registry, checkouts of these versions were read by `--source DIR`.
"""


@dataclass(frozen=True)
class Row:
    """One event of a table: the versions in which it is found, lacking for a reason, and lost."""

    table: str
    event: str
    found: tuple[str, ...]
    absent: tuple[str, ...]
    lost: tuple[str, ...]


def main() -> int:
    """Write the page; return 1 if an event is lost in any version."""
    tables = [table for table in load_tables() if table.trainer != "demo"]
    rows: list[Row] = []
    versions: dict[str, list[str]] = {}
    for about in read_abouts():
        mine = [table for table in tables if table.trainer == about.trainer]
        if about.oldest is None:
            continue
        package = mine[0].package
        versions[package] = versions_of(package, about.oldest)
        rows += rows_of(mine, package, versions[package])
    PAGE.write_text("\n".join(page(tables, versions, rows)))
    lost = [row for row in rows if row.lost]
    print(f"{PAGE}: {len(rows)} events, {len(lost)} lost in some version")  # noqa: T201 - a script
    return 1 if lost else 0


def versions_of(package: str, oldest: str) -> list[str]:
    """Return the versions in the package index from `oldest` on, the oldest first."""
    listed = _pip("index", "versions", package)
    line = next(line for line in listed.splitlines() if line.startswith("Available versions:"))
    versions = line.removeprefix("Available versions:").replace(" ", "").split(",")
    return sorted((one for one in versions if _key(one) >= _key(oldest)), key=_key)


def rows_of(tables: Sequence[PatchTable], package: str, versions: Sequence[str]) -> list[Row]:
    """Return a row an event, after reading each version once."""
    seen: dict[tuple[str, str], dict[str, list[str]]] = {}
    for version in versions:
        for checked in check(tables, open_tree(wheel_of(package, version))):
            for event, state in _states(checked.table, checked.sites):
                states = seen.setdefault((checked.table.name, event), {"found": [], "absent": [], "lost": []})
                states[state].append(version)
        print(f"{package} {version}", flush=True)  # noqa: T201 - minutes pass
    return [
        Row(table, event, *(tuple(states[state]) for state in ("found", "absent", "lost")))
        for (table, event), states in seen.items()
    ]


def _states(table: PatchTable, sites: Sequence[Site] | None) -> Iterator[tuple[str, str]]:
    """Yield each event and what became of it: lost if any place that should hold it does not.

    `sites` is None in a version that has none of the table's modules.
    """
    events = (region.event for patch in table.patches for region in patch.regions)
    for event in dict.fromkeys(events):
        mine = [site for site in sites or () if site.region.event == event]
        expected = [site for site in mine if site.expected]
        if any(site.state != "found" for site in expected):
            yield event, "lost"
        else:
            yield event, "found" if expected else "absent"


def wheel_of(package: str, version: str) -> Path:
    """Return the path of a wheel, fetched if it is not there yet."""
    if not list(WHEELS.glob(f"{package}-{version}-*.whl")):
        _pip("download", "--no-deps", "--dest", str(WHEELS), f"{package}=={version}")
    return next(WHEELS.glob(f"{package}-{version}-*.whl"))


def _pip(*arguments: str) -> str:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)  # noqa: S603 - our own words
    return done.stdout


def _key(version: str) -> tuple[int, ...]:
    main, _, post = version.partition(".post")
    numbers = [int(one) for one in re.findall(r"\d+", main)]
    return (*numbers, *[0] * (4 - len(numbers)), int(re.match(r"\d+", post)[0]) + 1 if post else 0)  # type: ignore[index]


def page(tables: Sequence[PatchTable], versions: dict[str, list[str]], rows: Sequence[Row]) -> Iterator[str]:
    """Yield the lines of the page."""
    about: dict[str, About] = {one.trainer: one for one in read_abouts()}
    yield TOP
    yield "| table | read in | tested |"
    yield "|---|---|---|"
    for table in tables:
        read = versions.get(table.package, [])
        where = f"{len(read)} versions of {table.package}, {read[0]} to {read[-1]}" if len(read) > 1 else ""
        by_hand = about[table.trainer].read
        elsewhere = f"in no registry; {by_hand}, by hand" if by_hand else "in no registry"
        where = where or (f"{table.package} {read[0]}" if read else elsewhere)
        tested = about[table.trainer].tested.get(table.name.rpartition("/")[2], "read only")
        anchor = table.name.replace("/", "")
        yield f"| [{table.name}](patch-tables.md#{anchor}) | {where} | {tested} |"
    for table in tables:
        mine = [row for row in rows if row.table == table.name]
        if mine:
            yield f"\n## {table.name}\n"
            yield "| event | found | has none | lost |"
            yield "|---|---|---|---|"
            every = versions[table.package]
            for row in mine:
                cells = (ranges(one, every) for one in (row.found, row.absent, row.lost))
                yield f"| `{row.event}` | {' | '.join(cells)} |"
    yield ""


def ranges(some: Sequence[str], every: Sequence[str]) -> str:
    """Return versions as ranges of neighbours: "0.5.2 to 0.5.4, 0.5.9"; "all" of all."""
    if some and len(some) == len(every):
        return "all"
    runs: list[list[str]] = []
    for version in every:
        if version not in some:
            runs.append([])
        elif runs:
            runs[-1].append(version)
        else:
            runs.append([version])
    return ", ".join(run[0] if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs if run)


if __name__ == "__main__":
    raise SystemExit(main())
