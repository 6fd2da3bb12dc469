"""Say what the engine's own logs tell of a worker's slow engine: was it the queue, the cache, or neither?"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from sglang_instrument.analysis.answers.engine.call_times import call_times
from sglang_instrument.analysis.answers.routing.conversations import CACHE_KNOWN
from sglang_instrument.analysis.verdict.advice import advice_of
from sglang_instrument.analysis.verdict.evidence.finding import Finding, seconds

if TYPE_CHECKING:
    from sglang_instrument.analysis.run.opening import Run

_LONGER: Final = 1.5  # times as long in the queue as the other workers' calls
_OF_CALL: Final = 0.1  # of a call's time; a shorter time more in the queue does not count
_LESS: Final = 0.1  # of the prompt: so much less in the cache than the other workers
_SLOWER: Final = 1.1  # times the seconds a token in decode
_LEAST_SEC: Final = 0.05  # a shorter queue is none: nothing is so many times as long
_NUMBERS: Final = ("queue_sec", "cached", "decode_token_sec")

_Numbers = dict[str, Any]


def with_engine_logs(run: "Run", findings: list[Finding]) -> list[Finding]:
    """Add to findings of a worker's slow engine what the engine's logs say of its calls, if there are any.

    The evidence gets medians of the worker's calls, and the medians of the other workers in its step:
    queue_sec; cached, the share of the prompts that was in the cache; decode_token_sec, the seconds a token.
    """
    calls = call_times(run) if any(map(_is_slow_engine, findings)) else None
    if calls is None:
        return findings
    return [
        _with_engine_times(finding, calls) if _is_slow_engine(finding) else finding for finding in findings
    ]


def _is_slow_engine(finding: Finding) -> bool:
    return finding.cause == "engine" and finding.scope == "worker"


def _with_engine_times(finding: Finding, calls: pl.DataFrame) -> Finding:
    workers = _by_worker(calls.filter(step=finding.step, validate=finding.validate))
    mine = workers.filter(worker=finding.worker).to_dicts()
    others = workers.filter(pl.col("worker") != finding.worker)
    if not mine or others.is_empty():
        return finding
    numbers: _Numbers = {}
    for name in _NUMBERS:
        usual = others[name].median()
        if mine[0][name] is not None and usual is not None:
            numbers |= {name: mine[0][name], f"others_{name}": usual}
    words = _words(numbers, mine[0]["call_sec"])
    advice = advice_of(finding, words) if words else finding.advice
    return replace(finding, advice=advice, evidence={**finding.evidence, **numbers})


def _by_worker(calls: pl.DataFrame) -> pl.DataFrame:
    """Return the numbers of each worker's calls."""
    cached, prompts = (pl.col(name).filter(CACHE_KNOWN).sum() for name in ("cached_tokens", "prompt_tokens"))
    wrote = pl.col("completion_tokens") > 1
    return calls.group_by("worker").agg(
        pl.col("queue_sec", "call_sec").median(),
        cached=pl.when(prompts > 0).then(cached / prompts),
        decode_token_sec=(pl.col("decode_sec") / (pl.col("completion_tokens") - 1)).filter(wrote).median(),
    )


def _words(numbers: _Numbers, call_sec: float) -> str:
    """Return what is out of the ordinary, or that nothing but the GPU is left; "" if that is not known."""
    odd, usual = [], []
    times = _times(numbers, "decode_token_sec")
    if "queue_sec" in numbers:
        longer = numbers["queue_sec"] - numbers["others_queue_sec"] > _OF_CALL * call_sec
        if not longer or _times(numbers, "queue_sec") <= _LONGER:
            usual.append("queue")
        elif _times(numbers, "queue_sec") > _LONGER * times:  # else a slow engine explains the queue
            odd.append(_queued(numbers))
    if "cached" in numbers:
        cached, others = numbers["cached"], numbers["others_cached"]
        if others - cached > _LESS:
            odd.append(
                f"its cache was hit less ({100 * cached:.0f} % against {100 * others:.0f} % of the prompts)"
            )
        else:
            usual.append("cache")
    if odd and times > _SLOWER:
        odd.append(f"a token took {times:.1f} times as long in decode")
        return f"{', '.join(odd)}: look at that GPU, and at which requests it gets"
    if odd:
        return f"{', '.join(odd)}: look at which requests it gets, and at its limits of requests and memory"
    return f"{' and '.join(usual)} as usual: look at that GPU (clock, other processes)" if usual else ""


def _queued(numbers: _Numbers) -> str:
    queued, others = numbers["queue_sec"], numbers["others_queue_sec"]
    if others < _LEAST_SEC:
        return f"its calls queued {seconds(queued)}, those of the other workers did not"
    return (
        f"its calls queued {queued / others:.1f} times as long ({seconds(queued)} against {seconds(others)})"
    )


def _times(numbers: _Numbers, name: str) -> float:
    """Return how many times that of the other workers a number is; 1 if it is not known."""
    return numbers[name] / max(numbers[f"others_{name}"], 1e-9) if name in numbers else 1.0
