"""Share out how much longer a step took than usual over the parts of its ledger."""

from typing import Any, Final, NamedTuple

import polars as pl

from sglang_instrument.analysis.digests.digest import Digest
from sglang_instrument.analysis.ledger.ledger import STEP, STEP_OF_WORKER, Paths, step_ledger

#: Parts whose calls have a usual time: what more or longer calls took, and what slower calls took.
_SPLIT: Final = {"engine": ("longer replies", "slower engine"), "tool": ("more tool calls", "slower tools")}
_REQUEST: Final = [*STEP_OF_WORKER, "request_id"]
_TURN: Final = [*_REQUEST, "turn"]
SLOWER: Final = frozenset(slower for _, slower in _SPLIT.values())
BETWEEN: Final = "between steps"
REST: Final = "rest"
_SECONDS: Final = ("sec", "usual_sec", "excess_sec")


class SlowestStep(NamedTuple):
    """The training step that took longest beside the others.

    Attributes:
        step: Which.
        sec: How long it took: until its last worker was done or, if `until_next`, until the next step began.
        usual_sec: The median of the steps.
    """

    step: int
    sec: float
    usual_sec: float
    until_next: bool

    @property
    def times(self) -> float:
        """How many times as long as the median step it took."""
        return self.sec / self.usual_sec if self.usual_sec else 1.0


def slowest_step(windows: pl.DataFrame) -> SlowestStep | None:
    """Return the training step that took longest beside the others; None without any.

    Steps without a next one are compared by the time until they were done only.

    Args:
        windows: As `step_windows` returns them.
    """
    training = windows.filter(~pl.col("validate"))
    done = training.with_columns(sec=(pl.col("done_us") - pl.col("begin_us")) / 1e6)
    begun = training.filter(~pl.col("is_last")).with_columns(sec="to_next_step_sec")
    slowest = [
        SlowestStep(int(steps.sort("sec")["step"][-1]), _highest(steps), _middle(steps["sec"]), until_next)
        for steps, until_next in ((done, False), (begun, True))
        if not steps.is_empty()
    ]
    return max(slowest, key=lambda slow_step: slow_step.times, default=None)


def excess_table(
    run: Digest | Paths, calls: pl.DataFrame, step: int, validate: bool = False, until_next: bool = True
) -> pl.DataFrame:
    """Return how much longer than usual each part of a step was, the longest first.

    Args:
        run: All processes of the run.
        calls: As `calls_of` returns them.
        step: The step.
        validate: Whether to take the validation at this step, and to compare it with other validations.
        until_next: Whether the time until the next step began counts, too. Steps without a next one are then
            left out.

    Returns:
        part, sec, usual_sec (the median of the other steps), excess_sec. Calls with a usual time are shared
        out over longer replies (what the written tokens usually take) and a slower engine, and over more tool
        calls and slower ones. "rest": the usual step less the sum of its usual parts. So all three columns
        add up to those of the whole step. No rows if there is no other step.
    """
    paths = Paths.of(run)
    steps = paths.windows.filter(validate=validate)
    if until_next:
        steps = steps.filter(~pl.col("is_last"))
    spent = _split(paths, calls).join(steps, on=STEP, how="semi")
    if not until_next:
        spent = spent.filter(pl.col("part") != BETWEEN)
    table = spent.pivot(on="part", index="step", values="sec").fill_null(0.0)
    mine, others = table.filter(step=step).drop("step"), table.filter(pl.col("step") != step).drop("step")
    if mine.is_empty() or others.is_empty():
        return pl.DataFrame(schema={"part": pl.String, **dict.fromkeys(_SECONDS, pl.Float64)})
    rows = [(part, mine[part][0], _middle(others[part])) for part in table.columns[1:]]
    usual = _middle(others.sum_horizontal())
    rows.append((REST, 0.0, usual - sum(usual_sec for _, _, usual_sec in rows)))
    of_parts = pl.DataFrame(rows, schema=["part", "sec", "usual_sec"], orient="row")
    of_parts = of_parts.with_columns(excess_sec=pl.col("sec") - pl.col("usual_sec"))
    return of_parts.sort("excess_sec", descending=True)


def _highest(steps: pl.DataFrame) -> float:
    highest: Any = steps["sec"].max()
    return float(highest)


def _middle(values: pl.Series) -> float:
    middle: Any = values.median()
    return float(middle or 0.0)


def _split(paths: Paths, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the seconds of each part of each step. Calls without a usual time keep their part."""
    whole = step_ledger(paths).filter(~pl.col("part").is_in(list(_SPLIT)))
    pieces = _with_turns(paths)
    # A call may lie on the path in part only. What a detector explained is still a part of its time.
    took = (pl.col("end_us") - pl.col("start_us")) / 1e6
    usual = calls.join(pieces, on=_REQUEST, how="semi").filter((pl.col("usual_sec") > 0) & (took > 0))
    usual = usual.select("kind", *_TURN, times=pl.col("usual_sec") / took)
    known = {kind: usual.filter(kind=kind).unique(_TURN).select(*_TURN, "times") for kind in _SPLIT}
    tables = [whole.select(*STEP, "part", "sec"), *_split_calls(pieces, known)]
    return pl.concat(tables).group_by(*STEP, "part").agg(pl.col("sec").sum()).sort(*STEP, "part")


def _split_calls(pieces: pl.DataFrame, known: dict[str, pl.DataFrame]) -> list[pl.DataFrame]:
    """Share out pieces of calls over what was usual and what was slower; those not known keep their part."""
    tables = []
    for kind, (more, slower) in _SPLIT.items():
        parts = pieces.filter(part=kind).join(known[kind], on=_TURN, how="left")
        timed = parts.filter(pl.col("times").is_not_null())
        tables += [
            parts.filter(pl.col("times").is_null()).select(*STEP, "part", "sec"),
            timed.select(*STEP, part=pl.lit(more), sec=pl.col("sec") * pl.col("times")),
            timed.select(*STEP, part=pl.lit(slower), sec=pl.col("sec") * (1 - pl.col("times"))),
        ]
    return tables


def _with_turns(paths: Paths) -> pl.DataFrame:
    """Return the pieces that decided, each with the turn that its request had begun last."""
    pieces = paths.deciding_calls
    turns = paths.of_workers.turns.join(pieces, on=_REQUEST, how="semi", maintain_order="left")
    turns = turns.join(paths.aligned.select(*STEP_OF_WORKER, "ahead_us"), on=STEP_OF_WORKER)
    begun = turns.select(*_TURN, from_us=pl.col("start_us") - pl.col("ahead_us"))
    both = pl.concat([begun, pieces], how="diagonal_relaxed").sort(*_REQUEST, "from_us", maintain_order=True)
    turn = pl.col("turn").forward_fill().over(_REQUEST)
    return both.with_columns(turn=pl.when(pl.col("request_id").is_not_null()).then(turn)).drop_nulls("part")
