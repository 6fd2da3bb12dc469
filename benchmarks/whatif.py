"""Hold what `whatif` predicts against runs of the same requests in which the rule was real.

`python whatif.py 5` does so for five runs of each shape. Bound: each step is within 5 % of the truth. The
exit code is 1 if one is not.
"""

import shutil
import sys
import tempfile
from pathlib import Path
from statistics import mean

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from queued import Queued

from sglang_instrument.analysis import open_run, step_table
from sglang_instrument.analysis.changes.replaying.rules import Rules
from sglang_instrument.analysis.changes.whatif import Model
from sglang_instrument.analysis.ledger.engine_speed import EngineSpeed

WITHIN = 0.05
SHAPES = {
    "an engine as fast with many calls as with one": {
        "load_sec": 0.0,
        "prefill_sec": 0.0,
        "context_sec": 0.0,
    },
    "and with prefill": {"load_sec": 0.0, "prefill_sec": 0.3},
    "slower with more calls": {"load_sec": 0.0003},
    "much slower with more calls": {"load_sec": 0.002},
    "four workers, an engine each": {"workers": 4, "requests": 12, "load_sec": 0.001},
    "four workers, one engine": {"workers": 4, "requests": 12, "load_sec": 0.001, "shared": True},
    "16 of 48 calls at once": {"load_sec": 0.001, "limit": 16},
}
#: The rule, and how the truth is made.
RULES = {
    "engine x 0.7": (Rules(scale={"engine": 0.7}), {"engine": 0.7}),
    "engine x 1.5": (Rules(scale={"engine": 1.5}), {"engine": 1.5}),
    "tool x 0.25": (Rules(scale={"tool": 0.25}), {"tool": 0.25}),
    "tool x 3": (Rules(scale={"tool": 3.0}), {"tool": 3.0}),
    "400 tokens a turn": (Rules(max_turn_tokens=400), {"most_tokens": 400}),
    "200 tokens a turn": (Rules(max_turn_tokens=200), {"most_tokens": 200}),
    "100 tokens a turn": (Rules(max_turn_tokens=100), {"most_tokens": 100}),
}


def ratios(seed, shape, known=None):
    """Return for each rule predicted over real seconds of each step."""
    folder = Path(tempfile.mkdtemp())
    try:
        recorded = open_run(Queued(seed=seed, **shape).write(folder / "recorded"), cached=False)
        model, ratios_by_rule = Model(recorded.digest, known), {}
        for name, (rules, change) in RULES.items():
            real = open_run(Queued(seed=seed, **shape, **change).write(folder / name), cached=False)
            both = model.predict(rules).join(step_table(real.digest), on=["step", "validate"])
            ratios_by_rule[name] = (both["predicted_sec"] / both["busy_sec"]).to_list()
        return ratios_by_rule
    finally:
        shutil.rmtree(folder)


def main(runs):
    """Print predicted over real, also for an engine that is as fast with any load; return 1 if one is off."""
    off = 0
    for shape_name, shape in SHAPES.items():
        print(f"{shape_name}:")
        fits = [(ratios(seed, shape), ratios(seed, shape, EngineSpeed())) for seed in range(runs)]
        for rule in RULES:
            fitted, plain = (
                [value for fit in each for value in fit[rule]] for each in zip(*fits, strict=True)
            )
            texts = [f"{mean(each):.3f} ({min(each):.3f} .. {max(each):.3f})" for each in (fitted, plain)]
            print(f"    {rule:<20}{texts[0]}; by tokens alone {texts[1]}", flush=True)
            off += sum(abs(value - 1) > WITHIN for value in fitted)
    return int(off > 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
