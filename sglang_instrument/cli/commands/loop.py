"""Show the whole training loop: what trainer and rollout do at each time, and which waits for the other."""

from __future__ import annotations

import argparse
import shlex
from typing import TYPE_CHECKING, Any, Final

from sglang_instrument.analysis.tables.column import Column
from sglang_instrument.cli import select
from sglang_instrument.cli.numbers import duration, percent
from sglang_instrument.cli.tables import print_json, print_line, print_table, reading
from sglang_instrument.errors import InstrumentError

HELP: Final = """\
Show the training loop: what trainer and rollout do, for how long one waits for the other, and how much of the
rewards runs behind generation. A step lasts from its begin to that of the next; each side adds up to it.

    sglang-instrument loop logs/gsm8k_600
    sglang-instrument loop logs/gsm8k_600 --step 67
    sglang-instrument loop logs/gsm8k_600 --replicas +1    # what one more server would save

--json prints {"folder", "shape": "synchronous", "one step off" or "asynchronous", "steps": [{"step",
"validate", "wall_sec", "rollout_sec", "train_sec", "both_sec", "weights_sec", "validation_sec",
"trainer_waits_sec", "rollout_waits_sec", "reward_sec", "reward_exposed_sec", "reward_hidden_sec"}], "ledger":
[{"step", "validate", "side": "trainer" or "rollout", "part", "sec"}], "mean": {the same as of a step, and
"trainer_waits", "rollout_waits": shares}, "missing": [sentences]}. What the log does not hold is null. "mean"
leaves out the first and the last step where rollouts run ahead. With --replicas also "replicas": {"recorded",
"source", "servers", "limit", "error", "steps": [{"step", "validate", "wall_sec", "rollout_sec",
"rollout_saved_sec", "saved_sec"}], "mean", "assumptions"}."""

if TYPE_CHECKING:
    from sglang_instrument.analysis.changes.replicas import Replicas

_STEPS: Final = (
    Column("step", "its number"),
    Column("wall", "from its begin to that of the next step", "time"),
    Column("rollout", "in which the rollout works: generation, tools, rewards", "time"),
    Column("training", "in which the trainer works: rewards, log-probs, update, checkpoint", "time"),
    Column("both", "in which both work", "time", gives_way=5),
    Column("weights", "in which weights are sent", "time", gives_way=4),
    Column("trainer waits", "in which the trainer waits for the rollout", "time"),
    Column("rollout waits", "in which no request is in flight while the trainer works", "time"),
    Column("exposed reward", "in which nothing but rewards goes on", "time", gives_way=2),
    Column(
        "hidden reward",
        "seconds of the other rewards, summed over requests: behind generation, training, or one another",
        "time",
        gives_way=1,
    ),
)
_PARTS: Final = (
    Column("part", "what a side does; both sides add up to the wall time"),
    Column("trainer", "seconds of the trainer's side", "time"),
    Column("trainer's share", "of the wall time", "share"),
    Column("rollout", "seconds of the rollout's side", "time"),
    Column("rollout's share", "of the wall time", "share"),
)
_REPLICAS: Final = (
    Column("step", "its number"),
    Column("wall", "from its begin to that of the next step, as recorded", "time"),
    Column("rollout", "in which the rollout works, as recorded", "time"),
    Column("rollout sooner", "by how much sooner the rollout would end; negative: later", "time"),
    Column("saved", "by how much shorter the step would be; negative: longer", "time"),
    Column("saved share", "of the wall time", "share"),
)
TABLES: Final = {
    "steps": _STEPS,
    "both sides": _PARTS,
    "--replicas: with more or fewer servers": _REPLICAS,
}
_SOURCES: Final = {
    "log": "as the log of its calls tells",
    "workers": "one a worker, as their calls tell",
    "told": "as --servers says",
    "assumed": "assumed, for the log names no server: `--servers N` says how many",
}
_SHOWN: Final = 12
_WORDS: Final = {
    "synchronous": "synchronous: one side after the other",
    "one step off": "one step off: the rollout is one step ahead",
    "asynchronous": "asynchronous: both sides at once",
    None: "the log does not show both sides",
}
_OF_STEP: Final = (
    *("wall_sec", "rollout_sec", "train_sec", "both_sec", "weights_sec"),
    *("trainer_waits_sec", "rollout_waits_sec", "reward_exposed_sec", "reward_hidden_sec"),
)
_Row = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `loop`."""
    select.add_arguments(parser)
    parser.add_argument(
        "--replicas", type=int, metavar="+N", help="estimate what N more servers would save; -N: cost"
    )
    parser.add_argument(
        "--servers", type=int, metavar="N", help="how many servers the run had, where the log does not tell"
    )
    parser.add_argument(
        "--max-running", type=int, metavar="N", help="how many requests a server runs at once"
    )


def run(args: argparse.Namespace) -> int:
    """Print the steps of the loop, both sides of them together, and which side waits."""
    from sglang_instrument.analysis.changes.replicas import with_replicas
    from sglang_instrument.analysis.changes.serving import serving_of
    from sglang_instrument.analysis.ledger.loop_of_run import loop_of

    if args.validate:
        raise InstrumentError("loop shows training steps; a validation is a part of the step in which it ran")
    for name in ("servers", "max_running"):
        given = getattr(args, name)
        if given is not None and (args.replicas is None or given < 1):
            option = name.replace("_", "-")
            raise InstrumentError(f"--{option} N, at least 1, goes with --replicas, such as --replicas +1")
    with reading() as progress:
        opened = select.open_logs(args, args.logs, progress)
        loop = loop_of(opened)
        shape = loop.shape()
        steps = select.of_steps(opened, loop.steps(), args)
        ledger = select.of_steps(opened, loop.ledger(), args)
        mean = loop.mean(select.steps_of(opened, args))
    missing = loop.missing()
    replicas = None
    if args.replicas is not None:
        known = {"recorded": args.servers, "running": args.max_running}
        replicas = with_replicas(loop, args.replicas, serving_of(opened), **known)
    if args.json:
        told = {"shape": shape, "steps": steps.to_dicts(), "ledger": ledger.to_dicts(), "mean": mean}
        more = {} if replicas is None else {"replicas": _as_json(replicas, steps["step"].to_list())}
        print_json({"folder": str(opened.folder), **told, "missing": missing, **more})
        return 0
    where = select.named(select.steps_of(opened, args))
    _print_steps(f"{opened.name}{where}: {_WORDS[shape]}", steps.to_dicts())
    _print_sides(ledger.to_dicts())
    for line in _sentences(shape, mean):
        print_line(line)
    if replicas is not None:
        _print_replicas(replicas, steps["step"].to_list())
    for sentence in missing:
        print_line(sentence)
    if not loop.is_seen:
        logs = shlex.quote(str(args.logs))
        print_line(f"`sglang-instrument status {logs}` names the processes and their patches")
    return 0


def _print_steps(title: str, steps: list[_Row]) -> None:
    shown = sorted(sorted(steps, key=lambda row: -row["wall_sec"])[:_SHOWN], key=lambda row: row["step"])
    of = f" (the {len(shown)} longest of {len(steps)} steps)" if len(shown) < len(steps) else ""
    rows = [(str(row["step"]), *(row[name] for name in _OF_STEP)) for row in shown]
    print_table(_STEPS, rows, title=f"{title}{of}")


def _print_sides(ledger: list[_Row]) -> None:
    """Print the parts of both sides, of all of these steps together."""
    from sglang_instrument.analysis.ledger.loop_lanes import LOOP_PARTS

    sums: dict[str, dict[str, float]] = {}
    for row in ledger:
        of_side = sums.setdefault(row["side"], {})
        of_side[row["part"]] = of_side.get(row["part"], 0.0) + row["sec"]
    parts = [part for part in LOOP_PARTS if any(part in side for side in sums.values())]
    rows = []
    for part in (*parts, "sum"):
        cells: list[float | None] = []
        for name in ("trainer", "rollout"):
            side = sums.get(name)
            whole = sum(side.values()) if side else 0.0
            sec = None if side is None else whole if part == "sum" else side.get(part, 0.0)
            cells += [sec, None if sec is None or not whole else sec / whole]
        rows.append((part, *cells))
    print_table(_PARTS, rows, title="\nboth sides, what their time was spent on")


def _as_json(replicas: Replicas, steps: list[int]) -> _Row:
    from sglang_instrument.analysis.changes.replicas import ASSUMED

    rows = [row for row in replicas.steps.to_dicts() if row["step"] in steps]
    return {**vars(replicas), "steps": rows, "assumptions": list(ASSUMED)}


def _print_replicas(replicas: Replicas, steps: list[int]) -> None:
    from sglang_instrument.analysis.changes.replicas import ASSUMED

    all_rows = [row for row in replicas.steps.to_dicts() if row["step"] in steps]
    rows = [
        (
            str(row["step"]),
            *(row[name] for name in ("wall_sec", "rollout_sec", "rollout_saved_sec", "saved_sec")),
            None if row["saved_sec"] is None else row["saved_sec"] / row["wall_sec"],
        )
        for row in all_rows[:_SHOWN]
    ]
    title = f"\n{replicas.servers} servers in place of {replicas.recorded}: a model, not a measurement"
    print_table(_REPLICAS, rows, title=title)
    sooner, saved = replicas.mean["rollout_saved_sec"], replicas.mean["saved_sec"]
    if sooner is not None:
        loop = "is not known without the trainer's phases"
        if saved is not None:
            loop = f"would {'save' if saved >= 0 else 'lose'} {duration(abs(saved))} a step"
        when = "sooner" if sooner >= 0 else "later"
        print_line(f"the rollout would end {duration(abs(sooner))} {when} a step; the loop {loop}")
    print_line(f"servers in the run: {replicas.recorded}, {_SOURCES[replicas.source]}")
    runs = "any number of calls" if replicas.limit is None else f"{replicas.limit} calls"
    off = "" if replicas.error is None else f"; half of the calls within {percent(replicas.error)} %"
    print_line(f"a server runs {runs} at once, and its speed is fitted to its calls{off}")
    for line in ASSUMED:
        print_line(line)


def _sentences(shape: str | None, mean: dict[str, Any]) -> list[str]:
    """Return in words which side waits, and what runs behind what."""
    lines = []
    waits = [
        f"the {side} waits for the {other}: {duration(sec)} a step, {percent(mean[f'{side}_waits'] or 0.0)} %"
        for side, other in (("trainer", "rollout"), ("rollout", "trainer"))
        if (sec := mean[f"{side}_waits_sec"]) is not None
    ]
    if waits:
        lines.append("; ".join(waits))
    if shape == "synchronous" and mean["wall_sec"]:
        hidden = min(mean["rollout_sec"], mean["train_sec"])
        lines.append(
            "one side always waits, because they take turns: a rollout that runs ahead would save at most "
            f"{duration(hidden)} a step"
        )
    if mean["reward_exposed_sec"] is not None:
        exposed, other = duration(mean["reward_exposed_sec"]), duration(mean["reward_hidden_sec"])
        lines.append(
            f"rewards: {exposed} a step on the critical path; {other}, summed over requests, behind others"
        )
    return lines
