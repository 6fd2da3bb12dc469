"""Hold what `advise` promises against worlds that are played again with the setting that it proposes.

`python advice.py 30` plays 30 worlds with one wrong setting of each kind and 30 well-set ones; `--hidden`
plays those on which nothing was tuned. A promise holds if the mean seconds that the steps to come save, with
other prompts, lie in its 80 % interval. The exit code is 1 unless 75 to 85 % do.
"""

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from set_worlds import WRONG, changed, play_set, step_sec, well_set_world, wrong_world

from sglang_instrument.analysis import advise, open_run
from sglang_instrument.testing.world.play import write_world

WELL_SET = "well-set"


def advised(world):
    """Return the rows of the levers that are told of a world, and the sentence."""
    with tempfile.TemporaryDirectory() as folder:
        run = open_run(write_world(Path(folder, "world"), play_set(world)), cached=False)
        advice = advise(run)
        return advice.rows("LOGS"), advice.sentence


def truth_of(world, row):
    """Return the mean seconds that a coming step saves; None if the world has no such setting."""
    after = changed(world, row)
    if after is None:
        return None
    return step_sec(play_set(world.continued())) - step_sec(play_set(after.continued()))


def main():
    """Play the worlds, and print what held."""
    parser = argparse.ArgumentParser()
    parser.add_argument("worlds", type=int)
    parser.add_argument("--hidden", action="store_true")
    parser.add_argument("--kind", choices=(*WRONG, WELL_SET))
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    held, first, seen = Counter(), Counter(), Counter()
    promises = Counter()
    for kind in [kind for kind in WRONG if args.kind in (None, kind)]:
        for seed in range(args.worlds):
            world = wrong_world(kind, seed, hidden=args.hidden)
            rows, sentence = advised(world)
            simulated = [row for row in rows if row["kind"] == "simulated"]
            first[kind] += bool(simulated) and simulated[0]["lever"] == kind
            seen[kind] += any(row["lever"] == kind for row in simulated)
            if args.verbose and not any(row["lever"] == kind for row in simulated):
                print(f"{kind} {seed}: not told: {sentence} {[row['lever'] for row in rows]}")
            for row in simulated:
                truth = truth_of(world, row)
                if truth is None:
                    continue
                name = row["lever"]
                promises[name] += 1
                held[name] += row["low"] <= truth <= row["high"]
                if args.verbose:
                    print(
                        f"{kind} {seed} [{world.shape.family}]: {name} {row['now']} -> {row['proposed']}: "
                        f"{row['saves_sec']:.2f} [{row['low']:.2f}, {row['high']:.2f}] truth {truth:.2f} "
                        f"{'' if row['low'] <= truth <= row['high'] else 'MISS'}"
                    )
        print(f"{kind}: told {seen[kind]} of {args.worlds}, first {first[kind]}", flush=True)
    for name in promises:
        print(f"{name}: held {held[name]} of {promises[name]} ({held[name] / promises[name]:.0%})")
    whole = sum(held.values()) / max(1, sum(promises.values()))
    print(f"all promises: held {sum(held.values())} of {sum(promises.values())} ({whole:.0%})")
    levers = Counter()
    for seed in range(args.worlds if args.kind in (None, WELL_SET) else 0):
        rows, _ = advised(well_set_world(seed, hidden=args.hidden))
        levers.update(row["lever"] for row in rows)
    if args.kind in (None, WELL_SET):
        print(f"well-set worlds: {sum(levers.values())} levers in {args.worlds} {dict(levers)}")
    return int(args.kind != WELL_SET and not 0.75 <= whole <= 0.85)


if __name__ == "__main__":
    sys.exit(main())
