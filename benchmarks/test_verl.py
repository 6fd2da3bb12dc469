"""Measure what all events cost verl's rollout: relative to the reference's logger, and on the real engine."""

import json
import os
import socket
import statistics
import subprocess
from pathlib import Path

import pytest
from rounds import HERE, ROUNDS, Spread, interval, save, table, warm_page_cache

ROOT = HERE.parent
TRAINER = ROOT / "tests/trainers/verl"
PYTHON = ROOT / ".envs/verl-0.6.1/bin/python"
MODEL = ROOT / ".envs/verl-model"
SECONDS = int(os.environ.get("BENCH_VERL_SECONDS", "900"))  # on the real engine

pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="needs tests/environments/verl.sh 0.6.1")


def measure(engine, folder, amount):
    """Return what `verl_rollout.py` measured in a number of rounds, or of seconds on the real engine."""
    warm_page_cache()
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = str(listening.getsockname()[1])
    variables = {
        "PATH": os.environ["PATH"],
        "HOME": os.environ.get("HOME", ""),
        "PYTHONPATH": os.pathsep.join(map(str, [ROOT, HERE, TRAINER, TRAINER / "shims"])),
        "PYTHONWARNINGS": "ignore",
        "SGLANG_USE_CPU_ENGINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "VERL_LOGGING_LEVEL": "ERROR",
        "OMP_NUM_THREADS": "1",
        "MASTER_PORT": port,
    }
    command = [PYTHON, HERE / "verl_rollout.py", engine, folder, MODEL, amount]
    done = subprocess.run(
        list(map(str, command)), env=variables, capture_output=True, text=True, cwd=folder, check=False
    )
    assert done.stdout.strip(), done.stderr[-4000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


def differences(rounds, variant, other):
    """Return for each round the difference of two variants, in CPU seconds per step."""
    return [answers[variant]["cpu_sec"] - answers[other]["cpu_sec"] for answers in rounds]


def test_our_own_cpu_is_less_than_that_of_the_reference_s_logger(show, tmp_path: Path):
    rounds = measure("at_once", tmp_path, ROUNDS)
    differences_of_ours = differences(rounds, "instrumented", "nothing")
    # Measure the logger inside the rollout, as in the reference's fork, and in a loop, where it is cheapest.
    theirs = statistics.median(differences(rounds, "in_place", "nowhere"))
    alone = statistics.median(answers["reference"]["cpu_sec"] for answers in rounds)
    # Divide medians: the difference of two long runs in a single round is too noisy for a ratio.
    ours = statistics.median(differences_of_ours)
    low, high = (bound / theirs for bound in interval(differences_of_ours))
    rows = [
        (
            "a step of verl",
            f"{statistics.median(answers['nothing']['cpu_sec'] for answers in rounds):.3f}",
            "",
            "",
        ),
        ("the reference's logger, in the rollout", f"{theirs:.4f}", "1", ""),
        ("the same logger in a loop", f"{alone:.4f}", f"{alone / theirs:.3f}", ""),
        ("ours", f"{ours:.4f}", f"{ours / theirs:.3f}", f"{low:.3f} .. {high:.3f}"),
    ]
    events = rounds[0]["reference"]["events"]
    title = f"2 x 256 requests, 3 turns, an engine that answers at once: {events} events a step"
    show(table(title, ("", "CPU s a step", "ratio", "95 %"), rows))
    save("verl_cpu", rows, rounds=rounds)
    assert ours < theirs


def test_how_much_longer_a_step_takes_on_the_real_engine(show, tmp_path):
    measured = measure("real", tmp_path, SECONDS)
    pairs, events = measured["pairs"], measured["events"]
    shares = [pair["with"] / pair["without"] for pair in pairs]
    share, (low, high), spread = statistics.median(shares), interval(shares), Spread.of(shares)
    step_sec = statistics.median(pair["without"] for pair in pairs)
    quartiles = f"{spread.low:.3f} .. {spread.high:.3f}"
    rows = [(f"{step_sec:.2f}", f"{share:.4f}", f"{low:.4f} .. {high:.4f}", quartiles)]
    what = f"a step of {measured['requests']} requests, {events:.0f} events, real engine"
    title = f"{what}; {len(pairs)} pairs"
    show(table(title, ("step s", "median ratio", "95 %", "quartiles"), rows))
    save("verl_wall", rows, rounds=pairs)
