"""Find steps whose requests had more to do: more turns than in the other steps, or longer prompts."""

from collections.abc import Iterator
from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.ledger.ledger import STEP, STEP_OF_WORKER
from sglang_instrument.analysis.verdict.evidence.chance import (
    AS_ROUNDED,
    Moments,
    chance_of_higher_mean,
    chance_of_higher_ranks,
    chance_of_moments,
    chances_of_higher_logs,
    chances_of_higher_ranks,
    drawn_together,
)
from sglang_instrument.analysis.verdict.evidence.detector import (
    Explained,
    Findings,
    NamedCause,
    Precedence,
    detector,
)
from sglang_instrument.analysis.verdict.evidence.finding import Finding, seconds, step_name
from sglang_instrument.analysis.verdict.evidence.run_evidence import Evidence
from sglang_instrument.analysis.verdict.evidence.servers.routed import lost_by

_NOT_PLANTED: Final = "`sglang_instrument.testing.world` plants it"
MORE_TURNS: Final = NamedCause(
    "more-turns",
    "step",
    "the requests of a step had at least 1.2 times as many turns as those of the other steps, by tests of "
    "their ranks, means and logarithms",
    "no fault of the engine: a limit of turns, or other prompts; `turns LOGS{step}`",
    not_planted=_NOT_PLANTED,
)
LONG_PROMPTS: Final = NamedCause(
    "long-prompts",
    "step",
    "the first prompts of a step's requests were at least 1.2 times as long as those of the other steps, by "
    "tests of their ranks, means and logarithms",
    "no fault of the engine: its prefills take as long as their tokens; `lengths LOGS{step}`",
    not_planted=_NOT_PLANTED,
)
_TIMES: Final = 1.2
_FEWEST: Final = 8  # requests of a step
_CHANCE: Final = 1e-3  # largest allowed probability, over all steps


@detector(MORE_TURNS, LONG_PROMPTS, precedence=Precedence.RECORDED)
def find_more_work(evidence: Evidence) -> Findings:
    """Yield a finding for each step whose requests had more turns, or longer prompts, and took longer by it.

    The physical fact: the counts themselves are higher, so that the same speed takes longer. Where requests
    flow, a step takes those that have ended, so that the first steps have few turns and the next ones many:
    no step drew them.
    """
    if not evidence.flows:
        yield from _more_turns(evidence)
    yield from _long_prompts(evidence)


def _more_turns(evidence: Evidence) -> Iterator[Finding]:
    requests = evidence.digest.requests.filter(pl.col("turns") > 0).with_columns(number_of="turns")
    for place, times in _steps_with_more(requests):
        mine = _of_step(requests, place)
        late = mine.with_columns(excess_sec=pl.col("duration_sec") * (1 - 1 / times))
        lost = evidence.worth(evidence.lost_in_requests(late.drop_nulls("excess_sec")))
        if lost.is_empty():
            continue
        lost_sec = float(lost["lost_sec"][0])
        sentence = (
            f"{step_name(**place)}: requests had {times:.1f} times as many turns as in the other steps, "
            f"which took {seconds(lost_sec)} more"
        )
        yield Finding(
            MORE_TURNS.name, "step", lost_sec, sentence, **place, event="turns", evidence={"times": times}
        )


def _long_prompts(evidence: Evidence) -> Iterator[Explained]:
    calls = evidence.served.filter((pl.col("number") == 0) & (pl.col("prompt_tokens") > 0))
    if calls.is_empty():  # as in runs whose engines do not log
        return
    request = [*STEP_OF_WORKER, "request_id"]
    groups = evidence.digest.requests.select(*request, "group").unique(request)
    calls = calls.join(groups, on=request, how="left", maintain_order="left")
    for place, times in _steps_with_more(calls.with_columns(number_of="prompt_tokens")):
        late = _late_by_prompts(evidence, place, times)
        lost = lost_by(evidence, late) if len(late) else None
        if lost is None:
            continue
        sentence = (
            f"{step_name(**place)}: prompts were {times:.1f} times as long as in the other steps, and their "
            f"prefills took {seconds(lost[0])} more"
        )
        yield Explained(
            Finding(
                LONG_PROMPTS.name,
                "step",
                lost[0],
                sentence,
                **place,
                event="prompts",
                evidence={"times": times},
            ),
            lost[1],
        )


def _late_by_prompts(evidence: Evidence, place: dict[str, Any], times: float) -> pl.DataFrame:
    """Return the engine calls of a step with what longer prompts cost them: `excess_sec`.

    A call waits for its own prefill and, in the queue and between its tokens, for those of others: where it
    took longer than usual, these are the reason.
    """
    engine = evidence.calls.filter(kind="engine").select(
        *STEP_OF_WORKER, "request_id", "turn", "sec", "usual_sec"
    )
    calls = _of_step(evidence.served, place)
    calls = calls.join(engine, on=[*STEP_OF_WORKER, "request_id", "turn"], how="left", maintain_order="left")
    prefills = (pl.col("prefill_sec").fill_null(0.0) + pl.col("queue_sec").fill_null(0.0)) * (1 - 1 / times)
    over = (pl.col("sec") - pl.col("usual_sec")).fill_null(0.0)
    return calls.with_columns(excess_sec=pl.max_horizontal(prefills, over)).filter(pl.col("excess_sec") > 0)


def _steps_with_more(rows: pl.DataFrame) -> Iterator[tuple[dict[str, Any], float]]:
    """Yield the steps whose `number_of` is higher than in the others, with how many times as high it is.

    The factor is that of the means; the tests are Mann and Whitney's of the ranks, Welch's of the means, and
    Student's of the logarithms, which tells more of a few groups.
    """
    counts = rows.with_columns(pl.col("number_of").cast(pl.Float64)).drop_nulls("step")
    counts = counts.with_columns(log=pl.col("number_of").log())
    together = drawn_together(counts, "log", [*STEP, "group"], STEP)
    for step, validate, chance in _may_have_more(counts, together):
        of_kind = counts.filter(validate=validate)
        part, others = of_kind.filter(step=step), of_kind.filter(pl.col("step") != step)
        if min(len(part), len(others)) < _FEWEST:
            continue
        mine, usual = part["number_of"], others["number_of"]
        means: list[Any] = [mine.mean(), usual.mean()]
        times = float(means[0] / means[1])
        if times < _TIMES:
            continue
        tests = chance_of_higher_ranks, chance_of_higher_mean
        chances = [chance, *(test(mine, usual, together) for test in tests)]
        if min(chances) * len(chances) * (1 + others["step"].n_unique()) < _CHANCE:
            yield {"step": int(step), "validate": bool(validate)}, times


def _may_have_more(counts: pl.DataFrame, together: float) -> Iterator[tuple[int, bool, float]]:
    """Yield the steps that may have more than the others, with the chance that their logarithms tell.

    All others need not be looked at one by one.
    """
    number, of_kind = pl.col("number_of"), "validate"
    cells = chances_of_higher_ranks(counts, "number_of", STEP, of_kind, together)
    sums = counts.group_by(STEP).agg(total=number.sum(), squares=(number**2).sum())
    by_logs = chances_of_higher_logs(counts, "number_of", STEP, of_kind, together)
    for more in (sums, by_logs.rename({"chance": "of_logs"})):
        cells = cells.join(more, on=STEP, maintain_order="left")
    every = cells.select(pl.col("total", "squares").sum().over(of_kind))
    tries = cells.select(3 * pl.len().over(of_kind)).to_series()
    for row, total, squares, times_tried in zip(
        cells.iter_rows(named=True), every["total"], every["squares"], tries, strict=True
    ):
        if min(row["count"], row["others"]) < _FEWEST:
            continue
        mine = Moments.of_sums(row["count"], row["total"], row["squares"])
        usual = Moments.of_sums(row["others"], total - row["total"], squares - row["squares"])
        chance = min(row["chance"], row["of_logs"], chance_of_moments(mine, usual, together))
        is_more = mine.mean >= _TIMES / AS_ROUNDED * usual.mean
        if is_more and chance * times_tried < _CHANCE * AS_ROUNDED:
            yield row["step"], row["validate"], row["of_logs"]


def _of_step(rows: pl.DataFrame, place: dict[str, Any]) -> pl.DataFrame:
    return rows.filter(*(pl.col(name) == place[name] for name in STEP))
