"""Say how many events of each trainer that is installed here will be recorded."""

import importlib.util
import sys
from collections.abc import Iterable
from typing import Final

from sglang_instrument import __version__
from sglang_instrument.patching.places.versions import installed_version
from sglang_instrument.patching.rewriting.sites import Site
from sglang_instrument.patching.tables.modes import variable_against
from sglang_instrument.patching.tables.regions import PatchTable
from sglang_instrument.recording.safety.guard import reraise_if_programs_own
from sglang_instrument.recording.safety.static_lookup import entries, stored_attribute

_DEMO: Final = "sglang_instrument.demo"  # always installed; counts as a trainer only once it is imported


def coverage_of(table: PatchTable, sites: Iterable[Site]) -> str:
    """Return how many events of a table will be recorded; "" if its trainer is not installed."""
    expected = [site for site in sites if site.expected and not site.region.settings]
    if not (expected and _is_here(table)):
        return ""
    against = [variable_against(site.region) for site in expected]
    never = [variable for variable in against if variable is not None]
    expected = [site for site, variable in zip(expected, against, strict=True) if variable is None]
    events = {site.region.event for site in expected}
    lost = {site.region.event for site in expected if site.state not in ("found", "pending")}
    missing = f", {len(lost)} missing (status() names them)" if lost else ""
    version = _version(table.package)
    of = f" ({table.package} {version})" if version is not None else ""
    without = f", without the {len(never)} that {', '.join(sorted(set(never)))} leaves out" if never else ""
    return f"{table.name}{of}: {len(events - lost)} of {len(events)} events{missing}{without}"


def _is_here(table: PatchTable) -> bool:
    """Return whether the table's trainer is installed, or can be imported from `sys.path`."""
    if table.trainer == "demo":
        return _DEMO in sys.modules
    return _version(table.package) is not None or any(map(_can_be_imported, packages_outside([table])))


def _can_be_imported(package: str) -> bool:
    module = sys.modules.get(package)
    try:  # find_spec() would ask a lazy module for its spec, and so load it
        spec = importlib.util.find_spec(package) if module is None else entries(module).get("__spec__")
    except BaseException:  # another finder failed
        reraise_if_programs_own()
        return False
    if spec is None:
        return module is not None
    return stored_attribute(spec, "origin") is not None  # no origin: only a folder has that name


def packages_outside(tables: Iterable[PatchTable]) -> set[str]:
    """Return the packages of the targets, except this package, which has the demo's targets."""
    modules = {module.partition(".")[0] for table in tables for module in table.modules}
    return modules - {"sglang_instrument"}


def _version(package: str) -> str | None:
    return __version__ if package == "sglang-instrument" else installed_version(package)
