"""Tell whether a server with a queue has less room than the others, or merely got more to do.

The physical fact: a server that runs as many calls, or holds as many tokens, as the others can has no limit
of its own. Near its capacity, a little more work is a long queue.
"""

from typing import Any, Final, NamedTuple

import numpy as np
import polars as pl

from sglang_instrument.analysis.ledger.ledger import STEP
from sglang_instrument.analysis.timing.open_spans import Array

_LESS: Final = 0.8  # of what the others run
_SOME_WAITING: Final = 0.05  # of the time that calls waited at the server in question


class _Level(NamedTuple):
    """What a server runs while calls wait, weighted by how many wait, and at most.

    `running` counts calls, `tokens` those of their prompts and of half of their replies.
    """

    waited_sec: float
    running: float
    tokens: float
    most_running: float
    most_tokens: float


def with_less_room(queues: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the servers and steps in which calls queued though fewer ran than run at the other servers.

    Args:
        queues: step, validate, server.
        calls: As `server_parts` returns them.
    """
    if queues.is_empty():
        return queues
    by_server = {str(server): part for (server,), part in calls.group_by("server")}
    levels = {server: _level(part, part) for server, part in by_server.items()}
    has_less = []
    for row in queues.select(*STEP, "server").iter_rows(named=True):
        part = by_server[row["server"]]
        here = _level(part, part.filter(*(pl.col(name) == row[name] for name in STEP)))
        others = [level for server, level in levels.items() if server != row["server"]]
        waiting = [level for level in others if level.waited_sec >= _SOME_WAITING * here.waited_sec]
        if waiting:
            running, tokens = (
                max(getattr(level, name) for level in waiting) for name in ("running", "tokens")
            )
        else:
            running = max((level.most_running for level in others), default=0.0)
            tokens = max((level.most_tokens for level in others), default=0.0)
        has_less.append(here.running < _LESS * running and here.tokens < _LESS * tokens)
    return queues.filter(pl.Series(has_less, dtype=pl.Boolean))


def _level(calls: pl.DataFrame, waiting: pl.DataFrame) -> _Level:
    """Return the level of a server while some of its calls wait.

    Args:
        calls: All that it ran.
        waiting: Those of its calls whose wait counts.
    """
    admitted, end = calls["admitted"].to_numpy(), calls["end"].to_numpy()
    tokens = calls["prompt_tokens"].fill_null(0).to_numpy() + calls["completion_tokens"].to_numpy() / 2
    until = waiting["admitted"].to_numpy()
    since = until - waiting["queue_sec"].fill_null(0.0).to_numpy()
    times = np.concatenate([admitted, end, since, until])
    order = np.argsort(times, kind="stable")
    sec = np.diff(times[order], append=times[order][-1:])
    none, ones = np.zeros(2 * len(until)), np.ones(len(admitted))
    running = np.cumsum(np.concatenate([ones, -ones, none])[order])
    held = np.cumsum(np.concatenate([tokens, -tokens, none])[order])
    ones = np.ones(len(until))
    waits = np.cumsum(np.concatenate([np.zeros(2 * len(admitted)), ones, -ones])[order])
    weights = waits * sec
    whole = float(weights.sum())
    return _Level(
        whole,
        _mean(running, weights, whole),
        _mean(held, weights, whole),
        float(running.max(initial=0.0)),
        float(held.max(initial=0.0)),
    )


def _mean(values: Array, weights: Array, whole: float) -> float:
    mean: Any = (values * weights).sum() / whole if whole > 0 else 0.0
    return float(mean)
