"""Keep the settings that a function is given: the probe of a region with the key `settings`.

Rewritten code calls `PROBE(args, self)` where the region begins. It records no event.
"""

from typing import Any

from sglang_instrument.patching.pickling import NO_PROBE, Reduced, reduce_with_stand_in
from sglang_instrument.patching.tables.regions import Region
from sglang_instrument.recording.safety.notices import log_swallowed
from sglang_instrument.recording.safety.static_lookup import stored_attribute
from sglang_instrument.recording.settings.configuration import keep_settings


class SettingsProbe:
    """A constant of a code object that reads settings; see `contract.py`."""

    exit_locals: tuple[str, ...] = ()
    item_locals: tuple[str, ...] = ()
    error_locals: tuple[str, ...] = ()
    wants_result = False
    wants_items = False
    is_instant = True
    assigns: str | None = None

    def __init__(self, region: Region) -> None:
        self.region = region
        paths = {name: path.split(".") for name, path in region.settings.items()}
        self.enter_locals = tuple(dict.fromkeys(local for local, *_ in paths.values()))
        self._paths = {
            name: (self.enter_locals.index(local), attributes) for name, (local, *attributes) in paths.items()
        }

    def __reduce__(self) -> Reduced:
        return reduce_with_stand_in(NO_PROBE, type(self), self.region)

    def counted(self) -> "SettingsProbe":
        """Return the probe for a coroutine: the same."""
        return self

    def __call__(self, *values: Any) -> Any:
        """Keep what the objects hold. Never raise."""
        for name, (local, attributes) in self._paths.items():
            try:
                holder = values[local]
                for attribute in attributes:
                    holder = stored_attribute(holder, attribute)
                keep_settings(name, holder)
            except BaseException as error:
                log_swallowed("reading settings", error)
