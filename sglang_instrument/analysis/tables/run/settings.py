"""Settings of the processes: of the engine, the trainer, this package, the machine and packages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sglang_instrument.analysis.tables.column import Column
from sglang_instrument.analysis.tables.table import Table

if TYPE_CHECKING:
    import polars as pl

    from sglang_instrument.analysis.run.opening import Run
    from sglang_instrument.analysis.settings.recorded import Setting


def _make(run: Run) -> pl.DataFrame:
    from sglang_instrument.analysis.settings.recorded import settings_of_run

    return SETTINGS.of_rows(map(_row, settings_of_run(run)))


def _row(setting: Setting) -> dict[str, Any]:
    import orjson

    value = setting.value
    text = value if isinstance(value, str) or value is None else orjson.dumps(value).decode()
    return {
        "process": setting.process,
        "role": setting.role,
        "source": setting.source,
        "setting": setting.name,
        "value": text,
        "number": float(value) if isinstance(value, (bool, int, float)) else None,
    }


SETTINGS: Final = Table(
    name="settings",
    row="a setting of a process",
    make=_make,
    is_stored=True,
    columns=(
        Column("process", "role and rank, such as worker_3"),
        Column("role", "worker, trainer, server ...; null if it recorded nothing"),
        Column("source", "server_args, config or args of the trainer, sglang_instrument, machine, packages"),
        Column("setting", "its name, with dots: actor_rollout_ref.rollout.n"),
        Column("value", "its value as text; null if it is None"),
        Column("number", "its value if it is a number; true is 1", "number"),
    ),
)
