"""Set one thing wrong on the real SGLang engine, ask `advise`, make the change, and see what came.

    python real_settings.py FOLDER [--steps 6] [--only NAME,NAME] [--unseen]

Each kind is a rollout in a closed loop against servers of its own (`set_rollout.py`), in which one setting is
wrong. The first lever should be that setting. Then the change is made as proposed, and the rollout runs again
with other prompts, which each kind draws for itself: `advise --verify` says whether the promise held. Named
levers promise nothing. Runs that are in FOLDER are judged again. The machine must be quiet: both runs stand
minutes apart.
"""

import argparse
import io
import json
import os
import subprocess
import sys
from contextlib import ExitStack, redirect_stdout
from dataclasses import dataclass, field, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from sglang_server import ARGUMENTS, IN_TURN, instrumented, model_of_the_demo

from sglang_instrument.cli.main import main as sglang_instrument
from sglang_instrument.demo.cpu_platform import write_plugin
from sglang_instrument.twin.servers.launches import launched

LIMIT, KV_TOKENS = 32, 65536


@dataclass(frozen=True)
class Kind:
    """What is set wrong.

    Attributes:
        lever: The levers that are right.
        settings: Of the rollout.
        limits: By server, its running requests.
        kv_tokens: By server, the tokens of its cache.
    """

    lever: tuple[str, ...]
    settings: dict = field(default_factory=dict)
    limits: tuple[int, ...] = (LIMIT,)
    kv_tokens: int = KV_TOKENS


KINDS = {
    "running limit of 2": Kind(("running limit",), limits=(2,)),
    "running limit of 4": Kind(("running limit",), limits=(4,)),
    "running limit of 1 on one of two servers": Kind(("unequal servers",), limits=(1, LIMIT)),
    "all groups on one of two servers": Kind(
        ("router policy",), {"is_routed_to_one": True, "go_on_share": 0.7}, (4, 4)
    ),
    "cache of 1,000 tokens": Kind(("key-value cache",), kv_tokens=1000),
    "pool of two tools": Kind(
        ("pool of tools or rewards",), {"tool_places": 2, "tool_sec": 1.0, "go_on_share": 0.6}
    ),
    "pool of one reward": Kind(  # more places, or no request that waits for its reward
        ("pool of tools or rewards", "rewards off the critical path"), {"reward_places": 1, "reward_sec": 0.4}
    ),
    "rewards on the critical path": Kind(("rewards off the critical path",), {"reward_sec": 4.0}),
    "no cap on responses": Kind(("response cap",), {"sigma": 1.1, "go_on_share": 0.0}),
    "no cap on turns": Kind(("turn cap",), {"go_on_share": 0.72}),
    "time-out of 12 s": Kind(
        ("time-out of a tool",), {"timeout_share": 0.06, "timeout_sec": 12.0, "go_on_share": 0.6}
    ),
    "preprocessing of 3 s": Kind(("constant cost out of the loop",), {"before_sec": 3.0}),
}


#: On these, nothing was tuned: other numbers, beside something else that takes time.
UNSEEN = {
    "running limit of 3, slow tools": Kind(("running limit",), {"tool_sec": 0.5}, (3,)),
    "running limit of 2 on one of two servers": Kind(("unequal servers",), {"sigma": 0.3}, (2, LIMIT)),
    "all groups on one server, long replies": Kind(
        ("router policy",), {"is_routed_to_one": True, "sigma": 0.4, "go_on_share": 0.6}, (6, 6)
    ),
    "cache of 1,500 tokens": Kind(("key-value cache",), {"go_on_share": 0.6}, kv_tokens=1500),
    "pool of four tools": Kind(
        ("pool of tools or rewards",), {"tool_places": 4, "tool_sec": 2.0, "go_on_share": 0.6}
    ),
    "pool of two rewards": Kind(
        ("pool of tools or rewards", "rewards off the critical path"), {"reward_places": 2, "reward_sec": 0.7}
    ),
    "rewards of 2.5 s": Kind(("rewards off the critical path",), {"reward_sec": 2.5, "sigma": 0.3}),
    "heavy replies": Kind(("response cap",), {"sigma": 1.3, "go_on_share": 0.2}),
    "many turns": Kind(("turn cap",), {"go_on_share": 0.78, "tool_sec": 0.5}),
    "time-out of 20 s": Kind(
        ("time-out of a tool",), {"timeout_share": 0.04, "timeout_sec": 20.0, "go_on_share": 0.6}
    ),
    "preprocessing of 2 s": Kind(("constant cost out of the loop",), {"before_sec": 2.0, "sigma": 0.3}),
    "preprocessing of 5 s, slow tools": Kind(
        ("constant cost out of the loop",), {"before_sec": 5.0, "tool_sec": 0.5}
    ),
}


def changed(kind, row):
    """Return a kind with a lever pulled; None of a lever that only names a setting."""
    value, lever = row["proposed"], row["lever"]
    if lever == "running limit":
        return replace(kind, limits=tuple(max(value, limit) for limit in kind.limits))
    of_pool = "reward_places" if "rewards" in row["setting"] else "tool_places"
    change = {
        "pool of tools or rewards": {of_pool: value},
        "rewards off the critical path": {"is_reward_aside": True},
        "response cap": {"most_tokens": value},
        "turn cap": {"most_turns": value},
        "time-out of a tool": {"timeout_sec": value},
        "constant cost out of the loop": {"before_sec": 0.0},
    }.get(lever)
    return None if change is None else replace(kind, settings={**kind.settings, **change})


def roll_out(folder, name, kind, steps, seed):
    """Run a kind on servers of its own, unless its log is there; return the folder of the log."""
    run = folder / "logs" / name
    if run.is_dir():
        return run
    scratch = folder / "scratch" / name
    scratch.mkdir(parents=True, exist_ok=True)
    write_plugin(scratch)
    run_id = {"SGLANG_INSTRUMENT_RUN_ID": f"20261128T000000-{name}"}
    environment = {**instrumented(folder, **run_id), "EXPERIMENT_NAME": name, "OMP_NUM_THREADS": "1"}
    environment["SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"] = "1"  # the demo's model knows 2,048 positions
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(scratch), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-W", "ignore", "-m", "sglang.launch_server"]
    command += ["--model-path", str(model_of_the_demo()), *ARGUMENTS, IN_TURN, "--context-length=4096"]
    command += [f"--max-total-tokens={kind.kv_tokens}", "--chunked-prefill-size=2048"]
    with ExitStack() as stack:
        urls = []
        for number, limit in enumerate(kind.limits):
            limited = [*command, f"--max-running-requests={limit}"]
            urls += stack.enter_context(launched(limited, 1, environment, scratch / f"printed_{number}"))
        rollout = [sys.executable, Path(__file__).with_name("set_rollout.py"), name, folder / "logs", steps]
        rollout += [seed, json.dumps(kind.settings), *urls]
        subprocess.run([*map(str, rollout)], env={**os.environ, **run_id}, check=True)
    return run


def asked(*words):
    """Return what a command answers with --json."""
    with redirect_stdout(io.StringIO()) as printed:
        sglang_instrument([*map(str, words), "--json"])
    return json.loads(printed.getvalue())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--only", default="")
    parser.add_argument("--unseen", action="store_true", help="kinds on which nothing was tuned")
    options = parser.parse_args()
    folder = options.folder.absolute()
    named, held = [], []
    for name, kind in (UNSEEN if options.unseen else KINDS).items():
        if not any(part in name for part in options.only.split(",")):
            continue
        short = name.replace(" ", "_").replace(",", "")
        before = roll_out(folder, short, kind, options.steps, f"{short}, first")
        answer = asked("advise", before)
        levers = [row["lever"] for row in answer["levers"]]
        named.append(bool(levers) and levers[0] in kind.lever)
        print(f"{name}: {'right' if named[-1] else 'WRONG'}: {answer['sentence']} {levers}", flush=True)
        row = answer["levers"][0] if levers else None
        after = changed(kind, row) if row is not None and row["kind"] == "simulated" else None
        if after is None:
            continue
        run = roll_out(folder, f"{short}.after", after, options.steps, f"{short}, second")
        verified = asked("advise", "--verify", before, run)["verified"]
        of_lever = next(entry for entry in verified if entry["lever"] == row["lever"])
        held.append(of_lever["held"])
        outcome = {True: "held", False: "NOT HELD", None: "steps scatter too much to tell"}[held[-1]]
        print(
            f"    {of_lever['now']} -> {of_lever['proposed']}: promised {of_lever['promised_sec']:.2f} s "
            f"({of_lever['promised_low']:.2f} to {of_lever['promised_high']:.2f}), came "
            f"{of_lever['saved_sec']:.2f} s of {of_lever['before_sec']:.2f}: {outcome}",
            flush=True,
        )
    known = [each for each in held if each is not None]
    print(
        f"first lever right: {sum(named)} of {len(named)}; promises held: {sum(known)} of {len(known)}; "
        f"cannot be known: {len(held) - len(known)}"
    )


if __name__ == "__main__":
    main()
