"""Say which tables measure a class already, because it derives from a class of their trainer."""

from collections.abc import Iterable
from typing import Final

from sglang_instrument.patching.suggest.methods import Methods
from sglang_instrument.patching.suggest.proposal import ENGINE, REQUEST, STEP, Proposals
from sglang_instrument.patching.tables.regions import PatchTable

#: What a trainer's tables record of each of its requests, whoever's loop makes the calls.
_OF_TRAINER: Final = frozenset({STEP, "async_generate_duration", REQUEST, "turn_end", ENGINE})


def measured_by(methods: Methods, tables: Iterable[PatchTable]) -> list[str]:
    """Return the names of the tables that record requests around, or in, the base classes of a class."""
    return [
        table.name
        for table in tables
        if _records_requests(table)
        and any(
            module == base or module.startswith(f"{base}.")
            for module in table.modules
            for base, _ in methods.bases
        )
    ]


def _records_requests(table: PatchTable) -> bool:
    return any(region.event == REQUEST for patch in table.patches for region in patch.regions)


def without_measured(proposals: Proposals) -> Proposals:
    """Return the regions that the trainer's tables do not record: tools, rewards, parsing."""
    regions = {
        name: [region for region in mine if region.event not in _OF_TRAINER]
        for name, mine in proposals.of.items()
    }
    return Proposals({name: mine for name, mine in regions.items() if mine}, [], None, proposals.request)
