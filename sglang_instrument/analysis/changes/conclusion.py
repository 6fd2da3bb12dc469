"""Say in words what a comparison of two runs concludes, and how sure that is."""

from dataclasses import dataclass
from typing import Any, Final, Literal

from sglang_instrument.analysis.changes.compare import MAIN_METRIC, MARGIN, Comparison
from sglang_instrument.analysis.changes.metrics import RATES

Outcome = Literal["slower", "faster", "same", "undecided"]

_MARGIN: Final = f"{MARGIN - 1:.0%}".replace("%", " %")
_UNDECIDED: Final = "The steps do not tell whether B is slower or faster than A"

_Row = dict[str, Any]  # of `Comparison.table`


@dataclass(frozen=True)
class Conclusion:
    """What a comparison concludes.

    Attributes:
        outcome: Whether the steps of B take longer than those of A.
        sentence: The same in words, with the ratio and its interval.
        points: What the steps tell, and do not tell, of the other metrics; a sentence each.
        basis: Which steps are compared, and how.
    """

    outcome: Outcome
    sentence: str
    points: list[str]
    basis: str


def conclusion_of(compared: Comparison) -> Conclusion:
    """Return what a comparison concludes. A is its first run, B the other."""
    rows = compared.table.to_dicts()
    main = next((row for row in rows if row["metric"] == MAIN_METRIC), None)
    outcome, sentence = _of_duration(main)
    return Conclusion(outcome, sentence, _points(rows, outcome), _basis(compared))


def _of_duration(row: _Row | None) -> tuple[Outcome, str]:
    if row is None or row["ratio"] is None:
        return "undecided", "Nothing is compared: a run has no training step with a duration yet"
    times = f"its steps take {_short(row['ratio'])} times as long"
    match row["verdict"]:
        case "higher":
            return (
                "slower",
                f"B is slower than A: {times} (interval {_interval(row)}), more than chance explains",
            )
        case "lower":
            return (
                "faster",
                f"B is faster than A: {times} (interval {_interval(row)}), more than chance explains",
            )
        case "same":
            return "same", f"B is as fast as A, within {_MARGIN}: {times} (interval {_interval(row)})"
    if row["ratio_at_least"] is None:
        return "undecided", f"{_UNDECIDED}: {times}, and one step does not show how much steps scatter"
    return "undecided", f"{_UNDECIDED}: {times} (interval {_interval(row)}); {_needed(row)}"


def _needed(row: _Row) -> str:
    if row["steps_needed"] is None:
        return f"even 10,000 steps of each would not tell a difference of {_MARGIN}"
    return f"{row['steps_needed']:,} steps of each would tell a difference of {_MARGIN}"


def _points(rows: list[_Row], outcome: Outcome) -> list[str]:
    rest = [row for row in rows if row["metric"] != MAIN_METRIC]
    changed = [row for row in rest if row["verdict"] in ("higher", "lower")]
    of_work = [_with_ratio(row) for row in changed if row["metric"] in RATES]
    of_the_draw = [_with_ratio(row) for row in changed if row["metric"] not in RATES]
    points = [
        ("Kinds of work that take a different time", of_work),
        ("Also different, but these depend on the lengths of the replies, too", of_the_draw),
        (f"The same within {_MARGIN}", _named(rest, "same")),
        ("Too few steps to tell", _named(rest, "too few steps")),
        ("Only A has", _named(rest, "only in A")),
        ("Only B has", _named(rest, "only in B")),
    ]
    words = [f"{about}: {', '.join(names)}" for about, names in points if names]
    kinds = [row["metric"] for row in rest if row["metric"] in RATES and row["ratio"] is not None]
    if outcome in ("slower", "faster") and kinds and not of_work:
        words.insert(0, f"The steps tell no difference in any kind of work: {', '.join(kinds)}")
    return words


def _named(rows: list[_Row], verdict: str) -> list[str]:
    return [row["metric"] for row in rows if row["verdict"] == verdict]


def _with_ratio(row: _Row) -> str:
    return f"{row['metric']} {_short(row['ratio'])} x ({_interval(row)})"


def _interval(row: _Row) -> str:
    return f"{_short(row['ratio_at_least'])} to {_short(row['ratio_at_most'])}"


def _short(ratio: float) -> str:
    return f"{ratio:.3g}" if ratio < 999.5 else f"{ratio:,.0f}"


def _basis(compared: Comparison) -> str:
    """Return which steps are compared, which are left out, and how."""
    runs = (
        ("A", compared.steps, compared.cold, compared.left_out),
        ("B", compared.other_steps, compared.other_cold, compared.other_left_out),
    )
    which = " and ".join(f"{_steps(len(steps))} of {name}" for name, steps, _, _ in runs)
    which += ", those that both runs have" if compared.common else ", not the same ones"
    out = [f"{name} has {left_out} more" for name, _, _, left_out in runs if left_out]
    out += [f"without the first of {name}, which was cold" for name, _, cold, _ in runs if cold]
    how = "step by step, because the prompts are the same" if compared.paired else "as two samples"
    return "; ".join([which, *out, f"compared {how}"])


def _steps(number: int) -> str:
    return f"{number} step" if number == 1 else f"{number} steps"
