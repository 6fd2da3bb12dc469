"""Say which regions never run because the trainer is in a mode that lacks their functions."""

import os
from typing import Final

from sglang_instrument.patching.tables.regions import Region

#: The values with which SGLang takes a variable as set, in any case.
_ON: Final = frozenset({"1", "true", "yes", "y"})


def variable_against(region: Region) -> str | None:
    """Return the environment variable that keeps a region from ever running here; None if it can run."""
    return next((name for name in region.not_in.values() if os.environ.get(name, "").lower() in _ON), None)
