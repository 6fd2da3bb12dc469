"""Find tools, by their names, that took long: in a step, from a step on, or for some calls beyond others."""

import math
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import polars as pl

from sglang_instrument.analysis.ledger.ledger import STEP
from sglang_instrument.analysis.verdict.evidence.chance import (
    AS_ROUNDED,
    chance_of_higher_ranks,
    chance_of_so_many,
    chances_of_higher_ranks,
)
from sglang_instrument.analysis.verdict.evidence.detector import Explained
from sglang_instrument.analysis.verdict.evidence.effects import Limits, find_shift
from sglang_instrument.analysis.verdict.evidence.finding import Finding, seconds, step_name
from sglang_instrument.analysis.verdict.evidence.named_tools import tools_of_turns
from sglang_instrument.analysis.verdict.evidence.run_evidence import Evidence

TOOL: Final = "tool"  # the cause, as `slow_work` names it
_LIMITS: Final = Limits(times=1.3, spread=0.05)
_FEWEST: Final = 5  # turns of a step with the same tools
_FEWEST_STEPS: Final = 3
_MORE: Final = 1.2  # times the seconds a turn of the median step: then the names are read
_CHANCE: Final = 1e-3  # over all steps and tools
_CHANCE_OF_SOME: Final = 1e-4  # the same that so many calls happen to be beyond all others
_FEWEST_BEYOND: Final = 3
_ALIKE: Final = 0.005  # calls that end within this share of their time end by a limit
_TIMES_OF_A_LIMIT: Final = 3.0  # times the usual


class _Slow(NamedTuple):
    """The turns of a tool that were slow: `sentence` says how, `calls` have `excess_sec`."""

    calls: pl.DataFrame
    sentence: str
    numbers: dict[str, Any]


def slow_tools(evidence: Evidence) -> Iterator[Explained]:
    """Yield a finding for each tool that took long in a step, or from a step on.

    The physical fact: calls of one name took longer than calls of the same name elsewhere. A mixture of tools
    hides one of them, and another mixture looks like a slow one.
    """
    calls = evidence.calls.filter((pl.col("kind") == "tool") & (pl.col("sec") > 0))
    if evidence.run is None or calls.is_empty() or not (steps := _steps_with_more(calls)):
        return
    named = tools_of_turns(evidence.run, calls, steps)
    at_limit = _at_a_limit(named)
    for mine, of in _unusual(at_limit, named):
        yield from _judged(evidence, _timed_out(mine, of))
    named = named.join(at_limit, on="row", how="anti")
    tools = named.drop_nulls("tools").partition_by("tools", as_dict=True, maintain_order=True)
    of_steps: dict[tuple[int, bool], list[_Slow]] = {}
    for (tool,), turns in tools.items():
        lasting = _from_a_step_on(turns, str(tool))
        if lasting is not None:
            yield from _judged(evidence, _with_mixtures(lasting, named))
            continue
        for step, validate in _may_be_slow(turns, len(tools)):
            of_kind = turns.filter(validate=validate)
            mine, others = of_kind.filter(step=step), of_kind.filter(pl.col("step") != step)
            tries = len(tools) * (1 + others["step"].n_unique())
            if min(len(mine), len(others)) >= _FEWEST:
                slow = _all_slow(mine, others, str(tool), tries) or _some_slow(mine, others, str(tool), tries)
                if slow is not None:
                    of_steps.setdefault((step, validate), []).append(slow)
    for of_step in of_steps.values():
        yield from _judged(evidence, _together([_with_mixtures(slow, named) for slow in _simplest(of_step)]))


def _simplest(of_step: list[_Slow]) -> list[_Slow]:
    """Return the slow tools of a step without turns that called one of them beside others."""
    names = [_names(slow) for slow in of_step]
    return [slow for slow in of_step if not any(name < _names(slow) for name in names)]


def _together(of_step: list[_Slow]) -> _Slow:
    """Return what the slow tools of a step have in common: one alone saves nothing where the others go on."""
    if len(of_step) == 1:
        return of_step[0]
    calls = pl.concat([slow.calls for slow in of_step], how="diagonal_relaxed").unique("row", keep="first")
    names = sorted(set[str]().union(*map(_names, of_step)))
    times = math.exp(sum(math.log(slow.numbers["times"]) for slow in of_step) / len(of_step))
    words = f"{step_name(*_place(calls))}: {len(names)} tools took {times:.1f} times as long as in the other "
    words += f"steps ({', '.join(names)})"
    return _Slow(calls.sort("row"), words, {"tool": ", ".join(names), "times": times, "calls": len(calls)})


def _names(slow: _Slow) -> set[str]:
    return set(slow.numbers["tool"].split(", "))


def _steps_with_more(calls: pl.DataFrame) -> list[int]:
    """Return the steps whose turns spent far more seconds in tools than those of the median step."""
    steps = calls.group_by(STEP).agg(mean_sec=pl.col("sec").mean())
    if len(steps) < _FEWEST_STEPS:
        return []
    usual = pl.col("mean_sec").median().over("validate")
    return sorted(set(steps.filter(pl.col("mean_sec") > _MORE * usual)["step"]))


def _at_a_limit(turns: pl.DataFrame) -> pl.DataFrame:
    """Return the turns that ended after one time, with `excess_sec`: the longest that several share.

    The physical fact: what works ends after times that differ; what is cut off ends at a limit.
    """
    long = turns.filter(pl.col("sec") > _TIMES_OF_A_LIMIT * pl.col("usual_sec")).sort("sec", descending=True)
    after = pl.col("sec").shift(1 - _FEWEST_BEYOND)
    begins = long.filter((after >= (1 - _ALIKE) * pl.col("sec")).fill_null(value=False))
    if begins.is_empty():
        return turns.clear().with_columns(excess_sec=pl.lit(0.0))
    limit_sec = float(begins["sec"][0])
    ended = long.filter(pl.col("sec").is_between((1 - _ALIKE) * limit_sec, (1 + _ALIKE) * limit_sec))
    return ended.with_columns(excess_sec=pl.col("sec") - pl.col("usual_sec")).sort(*STEP)


def _unusual(at_limit: pl.DataFrame, turns: pl.DataFrame) -> Iterator[tuple[pl.DataFrame, int]]:
    """Yield the turns of steps in which more ended at a limit than is usual, and how many turns those had."""
    counts = turns.group_by(STEP).agg(of=pl.len(), ended=pl.col("row").is_in(at_limit["row"].implode()).sum())
    usual: Any = (counts["ended"] / counts["of"]).median() or 0.0
    several = at_limit.filter(pl.len().over(STEP) > 1)  # one call of a step ends at any time
    for _, mine in several.group_by(STEP, maintain_order=True):
        everyone = _of_step(turns, mine)
        chance = chance_of_so_many(len(mine), len(everyone), usual) * len(counts) if usual else 0.0
        beyond = everyone.filter(pl.col("sec") > (1 + _ALIKE) * pl.lit(mine["sec"]).max())
        ends_them = 2 * len(beyond) <= len(mine)  # hardly any takes longer
        if ends_them and chance < _CHANCE and _are_several(everyone, mine):
            yield mine, len(everyone)


def _is_shared(turns: pl.DataFrame, slow: pl.DataFrame) -> bool:
    """Return whether most workers that have such turns have slow ones; else one of them is at fault."""
    return 2 * slow["worker"].n_unique() > turns["worker"].n_unique()


def _are_several(turns: pl.DataFrame, slow: pl.DataFrame) -> bool:
    """Return whether several workers have slow ones among others; else those that have them are at fault."""
    of_these = turns.join(slow, on="worker", how="semi")
    return _is_shared(turns, slow) or (slow["worker"].n_unique() > 1 and 2 * len(slow) <= len(of_these))


def _timed_out(mine: pl.DataFrame, of: int) -> _Slow:
    limit_sec = float(mine["sec"].median())  # type: ignore[arg-type]  # of floats
    words = (
        f"{step_name(*_place(mine))}: {len(mine)} of {of} turns with tools ended after {seconds(limit_sec)}, "
        "as by a limit of time"
    )
    return _Slow(mine, words, {"limit_sec": limit_sec, "calls": len(mine), "of": of})


def _of_step(turns: pl.DataFrame, mine: pl.DataFrame) -> pl.DataFrame:
    return turns.filter(*(pl.col(name) == mine[name][0] for name in STEP))


def _from_a_step_on(turns: pl.DataFrame, tool: str) -> _Slow | None:
    training = turns.filter(~pl.col("validate"))
    medians = training.group_by(STEP).agg(shared=pl.col("sec").log().median(), turns=pl.len()).sort("step")
    shift = find_shift(medians.filter(pl.col("turns") >= _FEWEST), _LIMITS)
    if shift is None:
        return None
    later = training.filter(pl.col("step") >= shift.step)
    words = f"from step {shift.step} on, {tool} took {shift.times:.1f} times as long as before"
    numbers = {"tool": tool, "times": shift.times, "first_step": shift.step, "steps": shift.steps}
    return _Slow(later.with_columns(excess_sec=pl.col("sec") * (1 - 1 / shift.times)), words, numbers)


def _may_be_slow(turns: pl.DataFrame, tools: int) -> list[tuple[int, bool]]:
    """Return the steps of which `_all_slow` or `_some_slow` may find that a tool took long.

    All others need not be looked at one by one.
    """
    kind, sec = "validate", pl.col("sec")
    cells = chances_of_higher_ranks(turns, "sec", STEP, kind)
    most = turns.group_by(STEP).agg(most=sec.max(), some=sec.top_k(_FEWEST_BEYOND).min())
    cells = cells.join(most, on=STEP, maintain_order="left")
    is_most = pl.col("most") == pl.col("most").max()
    is_alone = is_most & (is_most.sum() == 1)
    next_most = pl.when(is_alone).then(pl.col("most").top_k(2).min()).otherwise(pl.col("most").max())
    of_others = next_most.over(kind)
    tries = tools * pl.len().over(kind)
    all_slow = (pl.col("times") >= _LIMITS.times / AS_ROUNDED) & (
        pl.col("chance") * tries < _CHANCE * AS_ROUNDED
    )
    some_slow = pl.col("some") > _LIMITS.times * of_others
    enough = (pl.col("count") >= _FEWEST) & (pl.col("others") >= _FEWEST)
    return cells.filter(enough & (all_slow | some_slow)).select(STEP).rows()


def _all_slow(mine: pl.DataFrame, others: pl.DataFrame, tool: str, tries: int) -> _Slow | None:
    times = math.exp(_mean_log(mine) - _mean_log(others))
    if times < _LIMITS.times or chance_of_higher_ranks(mine["sec"], others["sec"]) * tries >= _CHANCE:
        return None
    usual: Any = others["sec"].median()
    of_workers = mine.group_by("worker").agg(pl.col("sec").median())
    if not _is_shared(mine, of_workers.filter(pl.col("sec") > math.sqrt(times) * usual)):
        return None
    words = f"{step_name(*_place(mine))}: {tool} took {times:.1f} times as long as in the other steps"
    numbers = {"tool": tool, "times": times, "calls": len(mine)}
    return _Slow(mine.with_columns(excess_sec=pl.col("sec") * (1 - 1 / times)), words, numbers)


def _some_slow(mine: pl.DataFrame, others: pl.DataFrame, tool: str, tries: int) -> _Slow | None:
    """Return the turns of a step that took longer than any elsewhere, if chance does not explain so many."""
    most, usual = float(others["sec"].max()), float(others["sec"].median())  # type: ignore[arg-type]  # of floats
    beyond = mine.filter(pl.col("sec") > _LIMITS.times * most)
    if len(beyond) < _FEWEST_BEYOND:
        return None
    if chance_of_so_many(len(beyond), len(mine), 1 / (len(others) + 1)) * tries >= _CHANCE_OF_SOME:
        return None
    if not _is_shared(mine, beyond):
        return None
    middle = float(beyond["sec"].median())  # type: ignore[arg-type]  # of floats
    words = f"{step_name(*_place(mine))}: {len(beyond)} of {len(mine)} turns with {tool} took "
    words += f"about {seconds(middle)}, where {seconds(usual)} are usual"
    numbers = {"tool": tool, "times": middle / usual, "calls": len(beyond), "of": len(mine)}
    return _Slow(beyond.with_columns(excess_sec=pl.col("sec") - usual), words, numbers)


def _with_mixtures(slow: _Slow, named: pl.DataFrame) -> _Slow:
    """Return the same with the turns of its steps that called the tool beside others, and took longer."""
    names = _names(slow)
    mixed = [other for other in named["tools"].drop_nulls().unique().sort() if names < set(other.split(", "))]
    turns = named.filter(pl.col("tools").is_in(mixed))
    elsewhere = turns.join(slow.calls, on=STEP, how="anti")
    usual = elsewhere.group_by("tools").agg(elsewhere_sec=pl.col("sec").median())
    turns = turns.join(slow.calls, on=STEP, how="semi").join(usual, on="tools", maintain_order="left")
    turns = turns.with_columns(excess_sec=pl.col("sec") - pl.col("elsewhere_sec"))
    turns = turns.filter(pl.col("excess_sec") > 0).select(slow.calls.columns)
    return slow._replace(calls=pl.concat([slow.calls, turns]))


def _judged(evidence: Evidence, slow: _Slow) -> Iterator[Explained]:
    """Yield the finding, if the steps lost enough by it."""
    lost = evidence.worth(evidence.lost_in_requests_or_flow(slow.calls))
    if lost.is_empty():
        return
    steps = slow.numbers.get("steps")
    lost_sec = float(lost["lost_sec"].sum()) / (steps or 1)
    place: dict[str, Any] = {} if steps else dict(zip(STEP, _place(slow.calls), strict=True))
    sentence = f"{slow.sentence}; {seconds(lost_sec)} lost{' a step' if steps else ''}"
    scope: Any = "run" if steps else "step"
    finding = Finding(TOOL, scope, lost_sec, sentence, **place, event="tool", evidence=slow.numbers)
    yield Explained(finding, slow.calls)


def _place(turns: pl.DataFrame) -> tuple[int, bool]:
    return int(turns["step"][0]), bool(turns["validate"][0])


def _mean_log(turns: pl.DataFrame) -> float:
    mean: Any = turns["sec"].log().mean()
    return float(mean or 0.0)
