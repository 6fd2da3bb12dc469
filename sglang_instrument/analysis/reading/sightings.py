"""Read what followers saw of processes that could not say it themselves: `live/HOST.json` of a run."""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

from sglang_instrument.regular_files import read_regular

_MOST_BYTES: Final = 2**20
_TEXTS: Final = ("kind", "role", "sentence")
_NUMBERS: Final = ("worker", "step", "since_us", "seen_us")


def sightings_of(folder: Path, runs: Collection[str]) -> list[dict[str, Any]]:
    """Return what followers saw of these runs, the oldest first.

    Returns:
        run_id, kind ("hang" or "death"), role, worker, step; since_us: when the process wrote last; seen_us:
        when it was last seen so; sentence.
    """
    try:
        paths = sorted((folder / "live").glob("*.json"))
    except OSError:
        return []
    sightings = [sighting for path in paths for sighting in sightings_in(path)]
    return sorted(
        (sighting for sighting in sightings if sighting.get("run_id") in runs),
        key=lambda sighting: sighting["since_us"],
    )


def sightings_in(path: Path) -> list[dict[str, Any]]:
    """Return the sightings in a file; [] if it is missing or none of ours."""
    try:
        sightings = json.loads(read_regular(path, _MOST_BYTES))["sightings"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []
    return [sighting for sighting in sightings if _is_whole(sighting)] if isinstance(sightings, list) else []


def _is_whole(sighting: Any) -> bool:
    return (
        isinstance(sighting, dict)
        and all(isinstance(sighting.get(name), str) for name in _TEXTS)
        and all(isinstance(sighting.get(name), int) for name in _NUMBERS)
    )
