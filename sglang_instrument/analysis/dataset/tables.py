"""Make the tables of a dataset that the digest answers: all of them but `spans`."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Final

import orjson
import polars as pl

from sglang_instrument.analysis.answers.as_json import as_json
from sglang_instrument.analysis.answers.call_times import paths_of
from sglang_instrument.analysis.answers.join import engine_request_table, has_engine_logs
from sglang_instrument.analysis.answers.requests import request_table
from sglang_instrument.analysis.answers.steps import STEP, STEP_OF_WORKER, step_table, worker_table
from sglang_instrument.analysis.answers.summary import summary_table
from sglang_instrument.analysis.answers.workers import barrier_table
from sglang_instrument.analysis.dataset.columns import fitted, schema_of
from sglang_instrument.analysis.reading.processes_of_run import read_processes
from sglang_instrument.analysis.run.opening import Run
from sglang_instrument.analysis.settings.recorded import Setting, settings_of
from sglang_instrument.analysis.verdict.verdict import findings_of
from sglang_instrument.errors import LogError

_PARTS: Final = (
    *("wall_sec", "engine_sec", "tool_sec", "interaction_sec", "reward_sec"),
    *("between_steps_sec", "rest_sec", "waiting"),
)


def make_table(run: Run, name: str) -> pl.DataFrame:
    """Return one of the tables in `MADE`, with its documented columns."""
    return fitted(name, MADE[name](run))


def _requests(run: Run) -> pl.DataFrame:
    return request_table(run.everything).sort("validate", "step", "worker", "start_us")


def _turns(run: Run) -> pl.DataFrame:
    return run.everything.of_workers().turns.sort("validate", "step", "worker", "request_id", "turn")


def _steps(run: Run) -> pl.DataFrame:
    spent = summary_table(run.digest, paths_of(run)).select(*STEP, *_PARTS)
    return step_table(run.digest).join(spent, on=STEP, how="left", maintain_order="left")


def _workers(run: Run) -> pl.DataFrame:
    certain = pl.col("doubt").is_null()
    waits = (
        barrier_table(run.digest)
        .group_by(STEP_OF_WORKER)
        .agg(
            pl.col("wait_sec").sum(),
            blame_sec=pl.when(certain.any()).then(pl.col("blame_sec").filter(certain).sum()),
        )
    )
    return worker_table(run.digest).join(waits, on=STEP_OF_WORKER, how="left", maintain_order="left")


def _engine_requests(run: Run) -> pl.DataFrame:
    if not has_engine_logs(run):
        return pl.DataFrame(schema=schema_of("engine_requests"))
    return engine_request_table(run)


def _processes(run: Run) -> pl.DataFrame:
    try:
        described = read_processes(run.home).processes
    except LogError:  # a log of an older version, or of another writer
        described = {}
    rows = [_process(name, facts) for name, facts in described.items()]
    return _table("processes", rows)


def _process(name: str, facts: dict[str, Any]) -> dict[str, Any]:
    counts = facts.get("records") or {}
    return {
        "process": name,
        **{key: facts.get(key) for key in ("run_id", "role", "rank", "host", "pid", "actor", "state")},
        **{key: counts.get(key) for key in ("recorded", "dropped")},
        "versions": _json(facts.get("versions") or {}),
    }


def _settings(run: Run) -> pl.DataFrame:
    return _table("settings", [_setting(setting) for setting in settings_of(run.home)])


def _setting(setting: Setting) -> dict[str, Any]:
    value = setting.value
    is_number = isinstance(value, (bool, int, float))
    text = value if isinstance(value, str) or value is None else orjson.dumps(value).decode()
    return {
        "process": setting.process,
        "role": setting.role,
        "source": setting.source,
        "setting": setting.name,
        "value": text,
        "number": float(value) if is_number and value is not None else None,
    }


def _findings(run: Run) -> pl.DataFrame:
    rows = [{**asdict(one), "evidence": _json(one.evidence)} for one in findings_of(run)]
    return _table("findings", rows)


def _table(name: str, rows: list[dict[str, Any]]) -> pl.DataFrame:
    """Return rows as a table; `as_json` replaces strings that polars cannot hold, as of names not UTF-8."""
    writable = orjson.loads(as_json(rows))
    return pl.DataFrame(writable, schema=schema_of(name), strict=False)


def _json(value: dict[str, Any]) -> str:
    return as_json(value).decode()


#: How each table is made.
MADE: Final[dict[str, Callable[[Run], pl.DataFrame]]] = {
    "requests": _requests,
    "turns": _turns,
    "steps": _steps,
    "workers": _workers,
    "engine_requests": _engine_requests,
    "processes": _processes,
    "settings": _settings,
    "findings": _findings,
}
