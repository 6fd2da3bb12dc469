"""What comparisons of twins with real rollouts share: taking turns by step, and the printed figures."""

import json
from statistics import fmean

from sglang_instrument.twin.trials.validity import interval_of


def take_turns(runs, steps):
    """Play each step once in each run, in an order that turns: other load then affects all of them alike.

    Args:
        runs: By a name, something whose `play(pass, place)` plays a step.
        steps: How many.
    """
    for place in range(steps):
        order = list(runs.values())[place % len(runs) :] + list(runs.values())[: place % len(runs)]
        for run in order if place % 2 else order[::-1]:
            run.play(1, place)
        print("step", place + 1, flush=True)


def show(limits, figures, records):
    """Print a line for each twin and record beside the real rollout, the first step left out.

    Args:
        limits: Of running requests, of the servers.
        figures: By limit and "real", "again" or the limit of the record that was played, the figures of each
            step.
        records: By limit, those of the record itself.
    """
    lines = []
    for limit in limits:
        real = figures[limit, "real"]
        for source in ["record", "again", *limits]:
            other = records[limit] if source == "record" else figures[limit, source]
            steps = sorted(set(real) & set(other))[1:]
            ratios = [other[step].rollout_sec / real[step].rollout_sec for step in steps]
            mean, low, high = interval_of(ratios)
            lines.append(
                {
                    "on": limit,
                    "from": source,
                    "steps": len(steps),
                    "ratio": round(mean, 3),
                    "interval": [round(low, 3), round(high, 3)],
                    "range": [round(min(ratios), 3), round(max(ratios), 3)],
                    "within_10": sum(abs(ratio - 1) <= 0.1 for ratio in ratios),
                    "p99_within_10": sum(abs(other[s].p99_sec / real[s].p99_sec - 1) <= 0.1 for s in steps),
                    "lengths_equal": all(
                        (other[s].calls, other[s].prompt_tokens, other[s].generated_tokens)
                        == (real[s].calls, real[s].prompt_tokens, real[s].generated_tokens)
                        for s in steps
                    ),
                    "cached_within_5": sum(
                        abs(other[s].cached_tokens - real[s].cached_tokens)
                        <= 0.05 * max(1, real[s].cached_tokens)
                        for s in steps
                    ),
                    "queue_sec": [round(fmean(f[s].queue_sec or 0 for s in steps), 3) for f in (real, other)],
                    "seconds": [round(fmean(f[s].rollout_sec for s in steps), 2) for f in (real, other)],
                }
            )
            print(json.dumps(lines[-1]))
    first, *others = limits
    for kind in ("real", "again", *limits):
        for limit in others:
            steps = sorted(set(figures[first, kind]) & set(figures[limit, kind]))[1:]
            effect = [
                figures[limit, kind][s].rollout_sec / figures[first, kind][s].rollout_sec for s in steps
            ]
            print(
                json.dumps({"effect": f"{limit} against {first}", "by": kind, "ratio": interval_of(effect)})
            )
