"""Check the setting `trainers`: a name without tables would switch all patches off without a word."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from msgspec import structs

from sglang_instrument.config import PREFIX, Config
from sglang_instrument.errors import ConfigError, TableError
from sglang_instrument.patching.tables.reading import tables_below
from sglang_instrument.patching.tables.shipped import shipped_tables, trainer_of

_NO_TRAINER: Final = "none"


def with_known_trainers(
    config: Config, is_given: bool, complain: Callable[[str], None], written: str = "install(trainers=...)"
) -> Config:
    """Return the settings with those trainers that have tables; with all, if no name is left.

    Args:
        config: The settings.
        is_given: Whether a person wrote the trainers; else they come from a variable, and `complain` is
            called with a sentence about unknown ones.
        complain: As above.
        written: How a person gives the setting, for the error.

    Raises:
        ConfigError: A trainer that a person wrote has no table.
    """
    if not config.trainers:
        return config
    try:
        users = tables_below([Path(folder) for folder in config.patches])
    except TableError:  # the session reports it
        return config
    names = {table.trainer for table in users} | set(map(trainer_of, shipped_tables()))
    unknown = [name for name in config.trainers if name not in names and name != _NO_TRAINER]
    if not unknown:
        return config
    reason = f"no table has the trainer {unknown[0]!r}; trainers are {', '.join(sorted(names))}, or none"
    if is_given:
        raise ConfigError(f"{written}: {reason}")
    known = tuple(name for name in config.trainers if name not in unknown)
    used = "the others are used" if known else "the tables of all trainers are used"
    complain(f"{PREFIX}TRAINERS: {reason}; {used}")
    return structs.replace(config, trainers=known)
