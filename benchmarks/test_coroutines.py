"""Measure what recording costs an event loop with many coroutines."""

from coroutines import VARIANTS
from rounds import ROUNDS, Spread, ratios, run_rounds, save, table, values

BOUNDS = {"span": 1.2}


def test_recording_hardly_slows_a_loop_of_ten_thousand_coroutines(show):
    rounds = run_rounds("coroutines", VARIANTS, max(1, ROUNDS // 2))
    shares = {variant: ratios(rounds, variant, "nothing", "loop_sec") for variant in VARIANTS}
    rows = [
        (
            variant,
            f"{Spread.of(values(rounds, variant, 'loop_sec')).median:.3f}",
            f"{share.median:.3f}",
            f"{share.low:.3f} .. {share.high:.3f}",
            BOUNDS.get(variant, ""),
            "" if share.median <= BOUNDS.get(variant, float("inf")) else "over",
        )
        for variant, share in shares.items()
    ]
    columns = ("variant", "loop CPU s", "ratio", "quartiles", "bound", "")
    show(table("10,000 coroutines x 5 spans around a sleep of 5 ms", columns, rows))
    save("coroutines", rows, rounds=rounds)
    assert [row[0] for row in rows if row[-1]] == []
