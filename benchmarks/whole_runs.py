"""Hold the forecast of whole trainings against simulated ones: how often their end lies in its 80 % interval.

`python whole_runs.py 200` simulates trainings whose replies grow in several ways, up to a cap, with
stragglers, validations and checkpoints, and asks for their end at 20, 50 and 80 % of their steps. `--hidden`
takes other ways and other numbers, on which nothing was tuned. The exit code is 1 unless 75 to 85 % hold
at each.
"""

import argparse
import math
import sys
from collections import Counter
from random import Random
from statistics import median

from sglang_instrument.analysis.outlook.trend import future_of

SHARES = (0.2, 0.5, 0.8)
OPEN = ("flat", "growing", "saturating", "falling, then growing", "wandering", "capped")
HIDDEN = ("late jump", "waves", "fading", "two slopes")


def growth(kind, place, random_walk):
    """Return the logarithm of the mean length of replies, of that at the begin; `place` runs from 0 to 1."""
    match kind:
        case "flat":
            return 0.0
        case "growing" | "capped":
            return 1.2 * place
        case "saturating":
            return 1.0 * (1 - math.exp(-4 * place))
        case "falling, then growing":
            return -0.4 * math.sin(math.pi * min(1.0, 3 * place)) + 0.8 * max(0.0, place - 0.33)
        case "wandering" | "waves":
            return random_walk + (0.2 * math.sin(9 * place) if kind == "waves" else 0.0)
        case "late jump":
            return 0.3 * place + (0.35 if place > 0.6 else 0.0)
        case "fading":
            return 0.6 * (1 - (1 - place) ** 3)
        case "two slopes":
            return 0.9 * place if place < 0.4 else 0.36 + 0.2 * (place - 0.4)


def training(kind, seed):
    """Return the seconds of each step of a training, of its validations and of its checkpoints."""
    random = Random(f"{kind}/{seed}")
    steps = random.choice((60, 120, 250, 500))
    strength, sigma = random.uniform(0.3, 1.3), random.uniform(0.3, 0.8)
    batch, tokens_per_sec = random.choice((64, 128, 256)), random.uniform(30, 80)
    crowd_sec, train_sec = random.uniform(2e-5, 2e-4), random.uniform(5e-5, 4e-4)
    mean = random.uniform(300, 1500)
    cap = mean * (random.uniform(1.5, 3) if kind == "capped" else random.uniform(4, 12))
    validates, saves = random.choice((0, 10, 20)), random.choice((0, 25, 50))
    drift, slow, walk = random.uniform(0.0, 0.004), 0.0, 0.0
    seconds, validations, checkpoints = [], [], []
    for step in range(steps):
        walk += random.gauss(0, 0.8 / math.sqrt(steps))
        slow = 0.8 * slow + random.gauss(0, drift * 10)
        middle = math.log(mean) + strength * growth(kind, step / steps, walk) + random.gauss(0, 0.03)
        lengths = [min(cap, random.lognormvariate(middle, sigma)) for _ in range(batch)]
        work = sum(lengths)
        sec = 3.0 + max(lengths) / tokens_per_sec + work * (crowd_sec + train_sec)
        sec *= math.exp(slow) * (random.uniform(1.3, 2.5) if random.random() < 0.02 else 1.0)
        seconds.append(sec)
        validations.append(0.6 * sec if validates and step % validates == validates - 1 else 0.0)
        checkpoints.append(random.uniform(20, 60) if saves and step % saves == saves - 1 else 0.0)
    return seconds, validations, checkpoints


def main():
    """Print how often the end lay in the interval, by the share of the training that was known."""
    parser = argparse.ArgumentParser()
    parser.add_argument("trainings", type=int)
    parser.add_argument("--hidden", action="store_true")
    args = parser.parse_args()
    kinds = HIDDEN if args.hidden else OPEN
    held, asked, by_kind, below, widths, errors = Counter(), Counter(), Counter(), Counter(), {}, {}
    for seed in range(args.trainings):
        kind = kinds[seed % len(kinds)]
        seconds, *extras = training(kind, seed)
        for share in SHARES:
            known = round(share * len(seconds))
            truth = sum(sum(each[known:]) for each in (seconds, *extras))
            paths = future_of(
                seconds[:known], len(seconds) - known, [extra[:known] for extra in extras], seed
            )
            low, middle, high = (float(paths.ends(quantile)[-1]) for quantile in (0.1, 0.5, 0.9))
            asked[share] += 1
            held[share] += low <= truth <= high
            below[share] += truth < low
            by_kind[kind, share] += low <= truth <= high
            widths.setdefault(share, []).append((high - low) / truth)
            errors.setdefault(share, []).append(abs(middle / truth - 1))
    for share in SHARES:
        print(
            f"at {share:.0%}: held {held[share]} of {asked[share]} ({held[share] / asked[share]:.1%}; "
            f"earlier than the interval: {below[share]}); half of the intervals are at most "
            f"{median(widths[share]):.0%} of the rest wide, half of the medians at most "
            f"{median(errors[share]):.1%} off"
        )
    for kind in kinds:
        of_kind = sum(kinds[seed % len(kinds)] == kind for seed in range(args.trainings))
        print(f"    {kind}: " + ", ".join(f"{by_kind[kind, share] / of_kind:.0%}" for share in SHARES))
    return int(not all(0.75 <= held[share] / asked[share] <= 0.85 for share in SHARES))


if __name__ == "__main__":
    sys.exit(main())
