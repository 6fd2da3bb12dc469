"""Measure the longest time that an event blocks its caller, and that recording blocks an event loop."""

from rounds import ROUNDS, Spread, run_rounds, save, table, values

P99_9_US = 30
LOOP_MS = 5
KEYS = ("p50_us", "p99_us", "p99_9_us", "max_us")


def medians(rounds, variant):
    return {key: Spread.of(values(rounds, variant, key)).median for key in KEYS}


def test_the_tail_of_a_span_is_short(show):
    variants = ("reference", "span")
    rounds = run_rounds("latency", variants, max(1, ROUNDS // 4))
    rows = [(name, *(f"{value:.2f}" for value in medians(rounds, name).values())) for name in variants]
    columns = ("variant", "p50 us", "p99 us", "p99.9 us", "max us")
    show(table(f"one event; p99.9 at most {P99_9_US} us", columns, rows))
    save("latency", rows, rounds=rounds)
    assert medians(rounds, "span")["p99_9_us"] <= P99_9_US


def test_recording_does_not_block_a_loop(show):
    variants = ("nothing", "loop with spans")
    rounds = run_rounds("latency", variants, max(1, ROUNDS // 4))
    over = {name: sum(values(rounds, name, "over_5_ms")) for name in variants}
    rows = [
        (name, *(f"{value:.1f}" for value in medians(rounds, name).values()), over[name]) for name in variants
    ]
    columns = ("variant", "p50 us", "p99 us", "p99.9 us", "max us", f"over {LOOP_MS} ms")
    show(table("turns of an event loop, 20,000 spans a second", columns, rows))
    save("loop", rows, rounds=rounds)
    # Other load pauses a loop for longer than the bound: compare with the pauses without spans.
    assert over["loop with spans"] <= 2 * over["nothing"] + 1


def test_no_single_piece_of_our_work_blocks_a_loop_too_long(show):
    rounds = run_rounds("latency", ("longest",), max(1, ROUNDS // 4))
    keys = ("chunk_ms", "span_ms", "beat_ms")
    longest = {key: max(values(rounds, "longest", key)) for key in keys}
    rows = [tuple(f"{longest[key]:.3f}" for key in keys)]
    columns = ("a chunk of lines", "a span", "a heartbeat")
    show(table(f"the longest of each at 20,000 spans a second, ms of CPU; at most {LOOP_MS}", columns, rows))
    save("longest", rows, rounds=rounds)
    assert max(longest.values()) <= LOOP_MS
