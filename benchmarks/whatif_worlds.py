"""Hold what `whatif` predicts against worlds of real schedulers' rules that are played again under the rule.

`python whatif_worlds.py 5` plays five worlds of each kind of `tests/support/changed_worlds.py`, and prints
predicted over true seconds, the least and the most of any step, and whether `whatif` warns.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from statistics import mean

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from changed_worlds import KINDS, RULES, changed_world, rules_of

from sglang_instrument.analysis import open_run, step_table
from sglang_instrument.analysis.changes.replaying.waits import waits_of
from sglang_instrument.analysis.changes.whatif import Model
from sglang_instrument.testing.world.play import write_world


def opened(folder, world):
    """Return the run of a world."""
    return open_run(write_world(folder, world.play()), cached=False)


def ratios(world, only=""):
    """Return predicted over true seconds of each step, by rule, and the model."""
    with tempfile.TemporaryDirectory() as folder:
        run = opened(Path(folder, "recorded"), world)
        lengths = run.digest.turns["response_tokens"].drop_nulls().to_list()
        model, by_rule = model_of(run), {}
        for name in RULES:
            if only not in name:
                continue
            rules = rules_of(name, lengths)
            real = opened(Path(folder, name), world.under(rules))
            both = model.predict(rules).join(step_table(real.digest), on=["step", "validate"])
            by_rule[name] = (both["predicted_sec"] / both["busy_sec"]).to_list()
        return by_rule, model


def model_of(run):
    """Return the model that `whatif` asks."""
    return Model(run.digest, waits=waits_of(run))


def main():
    """Play the worlds and print what was predicted."""
    parser = argparse.ArgumentParser()
    parser.add_argument("worlds", type=int)
    parser.add_argument("--kind", choices=KINDS)
    parser.add_argument("--rule", default="")
    args = parser.parse_args()
    for kind in KINDS if args.kind is None else [args.kind]:
        played = [ratios(changed_world(kind, seed), args.rule) for seed in range(args.worlds)]
        print(f"{kind}: {[model.replay_error and round(model.replay_error, 3) for _, model in played]}")
        for rule in played[0][0]:
            values = [value for by_rule, _ in played for value in by_rule[rule]]
            means = " ".join(f"{mean(by_rule[rule]):.3f}" for by_rule, _ in played)
            print(
                f"    {rule:<28}{mean(values):.3f} ({min(values):.3f} .. {max(values):.3f}); {means}",
                flush=True,
            )


if __name__ == "__main__":
    main()
