"""Measure the cost of one timed event: on its thread, and of the whole process."""

import pytest
from events import VARIANTS
from rounds import Spread, ratios, run_rounds, save, table, values

from sglang_instrument import native

#: At most this share of the reference's cost, by variant.
CALLER = {
    "span": 1 / 40,
    "decorated function": 1 / 25,
    "rewritten function": 1 / 25,
    "decorated coroutine": 1 / 12,
    "rewritten coroutine": 1 / 12,
    "range": 1 / 20,
    "range, three fields": 1 / 7,
}
WHOLE = {"span": 1 / 10}
#: Pure Python: cheaper than the reference in each variant.
PURE = dict.fromkeys(VARIANTS, 1.0)
#: Measured before on another machine, ns: the reference; a record made there, and json.dumps of it.
THEIR_REFERENCE_NS, THEIR_DUMPS_NS = 5993, 3655


@pytest.fixture(scope="module")
def rounds():
    return run_rounds("events", VARIANTS)


@pytest.mark.parametrize(("key", "compiled"), [("caller_ns", CALLER), ("whole_ns", WHOLE)])
def test_an_event_costs_a_small_share_of_the_references(rounds, show, key, compiled):
    bounds = compiled if native.ON else PURE
    shares = {variant: ratios(rounds, variant, "reference", key) for variant in VARIANTS}
    rows = [
        (
            variant,
            f"{Spread.of(values(rounds, variant, key)).median:.0f}",
            f"1/{1 / share.median:.1f}",
            f"1/{1 / share.high:.1f} .. 1/{1 / share.low:.1f}",
            f"1/{1 / bounds[variant]:.0f}" if variant in bounds else "",
            "" if share.median <= bounds.get(variant, float("inf")) else "over",
        )
        for variant, share in shares.items()
    ]
    what = "calling thread" if key == "caller_ns" else "whole process, until written"
    show(table(f"one event, CPU of the {what}", ("variant", "ns", "share", "quartiles", "bound", ""), rows))
    save(f"events_{key}", rows, rounds=rounds)
    assert [row[0] for row in rows if row[-1]] == []


def test_the_reference_costs_as_much_as_on_the_machine_of_the_bounds(rounds, show):
    here = ratios(rounds, "reference", "json.dumps", "caller_ns")
    expected = THEIR_REFERENCE_NS / THEIR_DUMPS_NS
    show(f"reference / json.dumps: {here.median:.2f} here, {expected:.2f} on the machine of the bounds")
    assert 1 / 1.3 <= here.median / expected <= 1.3
