"""Measure what a process with open requests pays for saying every two seconds what is open."""

from open_now import VARIANTS
from rounds import ROUNDS, Spread, run_rounds, save, table, values

from sglang_instrument.config import Config

SHARE = 0.1  # % of a core, at 1,000 open requests
HELD_MS = 0.35


def test_saying_what_is_open_costs_little_and_holds_the_gil_briefly(show):
    rounds = run_rounds("open_now", VARIANTS, max(3, ROUNDS // 2))
    rows, shares, longest = [], {}, 0.0
    for variant in VARIANTS:
        record, held = (Spread.of(values(rounds, variant, key)) for key in ("record_ms", "held_ms"))
        shares[variant] = record.median / (Config().open_now_sec * 1000) * 100
        longest = max(longest, held.median)
        rows.append(
            (
                variant,
                values(rounds, variant, "spans")[0],
                f"{record.median:.2f}",
                f"{record.low:.2f} .. {record.high:.2f}",
                f"{shares[variant]:.3f}",
                f"{held.median:.2f}",
            )
        )
    columns = ("open", "spans", "a record, ms", "quartiles", "% of a core", "GIL held, ms")
    title = f"open_now; at most {SHARE} % of a core at 1,000 requests, {HELD_MS} ms with the GIL"
    show(table(title, columns, rows))
    save("open_now", rows, rounds=rounds)
    assert shares["1000 requests"] <= SHARE
    assert longest <= HELD_MS
