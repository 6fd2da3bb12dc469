"""Start polars as suits a command: with one thread, and so that it gives memory back soon."""

import os
from contextlib import suppress
from typing import Final

#: A command makes hundreds of small queries: handing one over to other threads takes longer than the query.
#: With one thread, this process is also one of those that read logs. Memory is given back after 50 ms in
#: place of 500: a summary of 5 million events needs 508 MB in place of 653, and 1 to 3 % more time.
_SETTINGS: Final = {
    "POLARS_MAX_THREADS": "1",
    "_RJEM_MALLOC_CONF": "dirty_decay_ms:50,muzzy_decay_ms:0",
}


def start_polars() -> None:
    """Import polars with these settings, but for those that the user made; nothing happens if it is missing.

    Polars reads them when it is imported. Programs that the command starts do not inherit them.
    """
    missing = {name: value for name, value in _SETTINGS.items() if name not in os.environ}
    os.environ.update(missing)
    try:
        with suppress(ModuleNotFoundError):
            import polars  # noqa: F401 - only here are the settings made
    finally:
        for name in missing:
            del os.environ[name]
