"""The questions that an agent may ask of runs: each is one or two commands, cut to what fits."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sglang_instrument.analysis.tables.registry import stored_tables
from sglang_instrument.errors import InstrumentError
from sglang_instrument.mcp.command_answers import answer_of, as_typed
from sglang_instrument.mcp.fitting import fitted
from sglang_instrument.mcp.readable_runs import ReadableRuns
from sglang_instrument.mcp.unobserved import unobserved
from sglang_instrument.mcp.watching import watch_until

_MOST_ROWS: Final = 200
_MOST_QUERY: Final = 4000  # characters
_COLUMN: Final = re.compile(r"[A-Za-z_]\w*")
_LEAST_SHARE: Final = 0.001
_Row = dict[str, Any]


class Questions:
    """Answers of runs as JSON texts of fewer than 4,096 bytes.

    Each has the command that shows the same to a person, and what the log does not tell. What did not fit is
    counted in `left_out`, and `next` says what to call for it.

    Args:
        runs: The runs that may be read.
    """

    def __init__(self, runs: ReadableRuns) -> None:
        self._runs = runs

    def runs(self) -> str:
        """List the runs: name, begin, steps, the verdict in words."""
        rows = [self._row(readable.name) for readable in self._runs.all()]
        commands = [as_typed("runs", [str(folder)]) for folder in self._runs.folders]
        return fitted({"runs": rows, "command": "; ".join(commands)})

    def _row(self, name: str) -> _Row:
        """Return the newest launch of a run; of a run that cannot be read, why."""
        try:
            launches = answer_of("runs", [self._runs.path_of(name)])["runs"]
        except InstrumentError as error:
            return {"run": name, "error": str(error)}
        return {"run": name, "launches": len(launches), **(launches[-1] if launches else {})}

    def verdict(self, run: str) -> str:
        """Say what was out of the ordinary in a whole run, what cost most first, with the evidence."""
        path = self._runs.path_of(run)
        answer = answer_of("summary", [path])
        said = {"verdict": answer["verdict"], "findings": answer["findings"]}
        rest = {"tool": "table", "run": run, "name": "findings", "offset": 0}
        return self._told(path, "summary", [path], said, rest)

    def why(self, run: str, step: int, worker: int | None = None) -> str:
        """Explain one step: its ledger, its workers, its slowest requests, and the findings about it."""
        path = self._runs.path_of(run)
        at_step = [path, "--step", str(step)]
        of_worker = [] if worker is None else ["--worker", str(worker)]
        answer = answer_of("summary", at_step)
        requests = answer_of("requests", [*at_step, *of_worker, "--limit", "5"])["requests"]
        workers = [row for row in answer.get("workers") or [] if worker in (None, row["worker"])]
        said = {
            "findings": [row for row in answer["findings"] if row["step"] in (step, None)],
            "step_sec_by_part": _by_part((answer.get("ledger") or {}).get("steps") or []),
            "workers": [_of_worker(row) for row in sorted(workers, key=_busy, reverse=True)[:8]],
            "slowest_requests": requests,
            "engine": answer.get("engine"),
        }
        rest = {"tool": "table", "run": run, "name": "requests", "where": f"step = {step}", "offset": 0}
        return self._told(path, "summary", at_step, said, rest)

    def table(
        self, run: str, name: str, where: str = "", order_by: str = "", limit: int = 20, offset: int = 0
    ) -> str:
        """Return rows of a table that meet a condition in SQL, such as `step = 67 and tool_sec > 1`."""
        path = self._runs.path_of(run)
        known = (*stored_tables(), "fields")
        if name not in known:
            raise InstrumentError(f"no table {name[:60]!r}; the tables are: {', '.join(known)}")
        if not 0 < limit <= _MOST_ROWS or not 0 <= offset <= 10**12:
            raise InstrumentError(f"limit must be 1 to {_MOST_ROWS}, and offset not negative")
        if order_by and not _COLUMN.fullmatch(order_by.removesuffix(" desc").strip()):
            raise InstrumentError("order_by must be a column, or a column and desc: duration_sec desc")
        condition = f" where ({where})" if where.strip() else ""
        order = f" order by {order_by}" if order_by else ""
        # With one row more than asked for, to know whether there are more. `sql` holds the query.
        query = f"select * from {name}{condition}{order} limit {limit + 1} offset {offset}"  # noqa: S608
        rest = {
            "tool": "table",
            "run": run,
            "name": name,
            "where": where,
            "order_by": order_by,
            "offset": offset,
        }
        return self._asked(path, query, {key: value for key, value in rest.items() if value != ""}, limit)

    def sql(self, run: str, query: str) -> str:
        """Answer one SELECT in DuckDB's SQL over the run's tables."""
        return self._asked(self._runs.path_of(run), query, {"hint": "limit, group by or name fewer columns"})

    def _asked(self, path: str, query: str, rest: Mapping[str, Any], limit: int | None = None) -> str:
        if len(query) > _MOST_QUERY:
            raise InstrumentError(f"a query has at most {_MOST_QUERY:,} characters, this one {len(query):,}")
        rows = answer_of("sql", [path, query])["rows"]
        has_more = limit is not None and len(rows) > limit
        return self._told(path, "sql", [path, query], {"rows": rows[:limit]}, rest, has_more)

    def settings(self, run: str) -> str:
        """Return the settings of trainer and engine that the run recorded."""
        rest = {"tool": "table", "run": run, "name": "settings", "order_by": "all", "offset": 0}
        return self._asked(self._runs.path_of(run), "select * from settings order by all", rest)

    def watch_until(self, run: str, problem: str = "any", timeout_sec: float = 30.0) -> str:
        """Wait until a problem of a running run, the end of its step or of the run; call it again after."""
        path = self._runs.path_of(run)
        state = watch_until(path, problem, timeout_sec)
        return fitted({**state, "command": as_typed("watch", [path, "--once"])})

    def compare(self, a: str, b: str) -> str:
        """Compare run B with run A: what differs by more than noise, and which settings do."""
        paths = [self._runs.path_of(a), self._runs.path_of(b)]
        return self._told(paths[1], "compare", paths, answer_of("compare", paths))

    def advise(self, run: str) -> str:
        """Say which setting to change: from what to what, what it saves a step, what it costs."""
        path = self._runs.path_of(run)
        return self._told(path, "advise", [path], answer_of("advise", [path, "--no-promise"]))

    def _told(
        self,
        path: str,
        command: str,
        arguments: Sequence[str],
        said: Mapping[str, Any],
        rest: Mapping[str, Any] | None = None,
        has_more: bool = False,
    ) -> str:
        """Return an answer with its command and what was not observed."""
        facts = {"command": as_typed(command, arguments), "not_observed": unobserved(path)}
        return fitted({**said, **facts}, rest, has_more)


def _by_part(ledger: Sequence[_Row]) -> dict[str, float]:
    """Return the seconds of the step by part of the ledger, the largest first; those under 0.1 % go."""
    parts: dict[str, float] = {}
    for row in ledger:
        parts[row["part"]] = parts.get(row["part"], 0.0) + row["sec"]
    whole = sum(parts.values())
    return {
        part: sec
        for part, sec in sorted(parts.items(), key=_seconds, reverse=True)
        if sec >= _LEAST_SHARE * whole
    }


def _seconds(part: tuple[str, float]) -> float:
    return part[1]


def _busy(worker: _Row) -> float:
    return float(worker.get("busy_sec") or worker.get("duration_sec") or 0.0)


def _of_worker(row: _Row) -> _Row:
    """Return a worker's row, of its phases those that have 0.1 % of its time, the largest first."""
    phases = sorted((row.get("phases") or {}).items(), key=_seconds, reverse=True)
    return {**row, "phases": {phase: share for phase, share in phases if share >= _LEAST_SHARE}}
