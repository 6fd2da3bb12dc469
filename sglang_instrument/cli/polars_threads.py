"""Let polars use one thread in a command, which also makes this process one of those that read logs."""

import os
from typing import Final

_SETTING: Final = "POLARS_MAX_THREADS"


def use_one_thread() -> None:
    """Start polars with one thread, unless the user set a number or it has begun.

    A command makes hundreds of small queries. Handing one over to other threads takes longer than the query.
    """
    if _SETTING in os.environ:
        return
    os.environ[_SETTING] = "1"
    try:
        import polars

        polars.thread_pool_size()  # polars reads the setting when it starts its threads, here
    finally:
        del os.environ[_SETTING]  # the programs that a command starts do not inherit it
