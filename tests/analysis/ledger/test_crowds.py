"""The calls beside a call, as the engine's speed counts them, against counting them moment by moment."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_instrument.analysis.ledger.engine_speed import OF_WORKER, crowds

Call = tuple[int, int, int, int]  # step, worker, begin, length
CALLS = st.lists(
    st.tuples(st.integers(1, 2), st.integers(0, 2), st.integers(0, 12), st.integers(1, 8)),
    min_size=1,
    max_size=20,
)


def beside(calls: list[Call], mine: Call, shared: bool) -> float:
    """Return how many calls of its pool run during a call on average, itself among them."""
    pool = [call for call in calls if call[0] == mine[0] and (shared or call[1] == mine[1])]
    ticks = range(mine[2], mine[2] + mine[3])
    return sum(begin <= tick < begin + length for tick in ticks for *_, begin, length in pool) / mine[3]


@given(calls=CALLS, shared=st.booleans())
def test_the_crowd_of_a_call_is_the_mean_number_of_calls_meanwhile(calls: list[Call], shared: bool) -> None:
    table = pl.DataFrame(
        {
            "run": 0,
            "step": [step for step, *_ in calls],
            "validate": False,
            "worker": [worker for _, worker, *_ in calls],
            "start_sec": [float(begin) for *_, begin, _ in calls],
            "end_sec": [float(begin + length) for *_, begin, length in calls],
        }
    )

    counted = crowds(table, OF_WORKER[:-1] if shared else OF_WORKER)

    assert counted.tolist() == pytest.approx([beside(calls, call, shared) for call in calls])
