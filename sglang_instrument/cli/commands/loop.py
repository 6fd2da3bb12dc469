"""Show the whole training loop: what trainer and rollout do at each time, and which waits for the other."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from sglang_instrument.analysis.tables.training.loop import (
    LOOP_LEDGER,
    LOOP_MEAN,
    LOOP_SIDES,
    LOOP_STEPS,
    REPLICAS,
)
from sglang_instrument.cli import select
from sglang_instrument.cli.answer import FOLDER, MISSING, Key
from sglang_instrument.cli.numbers import duration, percent
from sglang_instrument.cli.tables import print_json, print_line, print_rows, reading
from sglang_instrument.errors import InstrumentError

HELP: Final = """\
Show the training loop: what trainer and rollout do, for how long one waits for the other, and how much of the
rewards runs behind generation. A step lasts from its begin to that of the next; each side adds up to it.

    sglang-instrument loop logs/gsm8k_600
    sglang-instrument loop logs/gsm8k_600 --step 67
    sglang-instrument loop logs/gsm8k_600 --replicas +1    # what one more server would save

    step  to next step s  rollout s  train s  both work s  trainer waits s  rollout waits s
    66              74.5       54.5     20.0          0.0             54.5             20.0
    67             234.9      214.9     20.0          0.0            214.9             20.0"""

if TYPE_CHECKING:
    from sglang_instrument.analysis.changes.replicas import Replicas

TABLES: Final = (LOOP_STEPS, LOOP_SIDES, LOOP_MEAN, LOOP_LEDGER, REPLICAS)
_REPLICAS: Final = {
    "recorded": Key("integer", "how many servers the run had"),
    "source": Key("string", "how this is known: log, workers, told or assumed"),
    "servers": Key("integer", "how many servers are estimated"),
    "limit": Key("integer", "how many calls a server runs at once; null for any number"),
    "error": Key("number", "half of the calls are farther from the fitted speed; null without a fit"),
    "steps": Key(REPLICAS),
    "mean": Key("object", "the mean of each column, a step"),
    "assumptions": Key("array", "sentences"),
}
ANSWER: Final = {
    "folder": FOLDER,
    "shape": Key("string", "synchronous, one step off, or asynchronous; null if both sides are not seen"),
    "steps": Key(LOOP_STEPS),
    "ledger": Key(LOOP_LEDGER),
    "mean": Key(LOOP_MEAN, is_row=True),
    "missing": MISSING,
    "replicas": Key(_REPLICAS, "with --replicas", optional=True),
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
    from sglang_instrument.analysis.changes.replaying.serving import serving_of
    from sglang_instrument.analysis.changes.replicas import with_replicas
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
        tables: _Row = {"shape": shape, "steps": LOOP_STEPS.in_json(steps.to_dicts())}
        tables |= {"ledger": LOOP_LEDGER.in_json(ledger.to_dicts()), "mean": LOOP_MEAN.in_json([mean])[0]}
        more = {} if replicas is None else {"replicas": _as_json(replicas, steps["step"].to_list())}
        print_json({"folder": str(opened.folder), **tables, "missing": missing, **more})
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
    shown = sorted(
        sorted(steps, key=lambda row: -row["to_next_step_sec"])[:_SHOWN], key=lambda row: row["step"]
    )
    of = f" (the {len(shown)} longest of {len(steps)} steps)" if len(shown) < len(steps) else ""
    print_rows(LOOP_STEPS, shown, title=f"{title}{of}")


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
        shown: _Row = {"part": part}
        for name in ("trainer", "rollout"):
            side = sums.get(name)
            whole = sum(side.values()) if side else 0.0
            sec = None if side is None else whole if part == "sum" else side.get(part, 0.0)
            shown |= {f"{name}_sec": sec, f"{name}_share": None if sec is None or not whole else sec / whole}
        rows.append(shown)
    print_rows(LOOP_SIDES, rows, title="\nboth sides, what their time was spent on")


def _as_json(replicas: Replicas, steps: list[int]) -> _Row:
    from sglang_instrument.analysis.changes.replicas import ASSUMED

    rows = [row for row in replicas.steps.to_dicts() if row["step"] in steps]
    return {**vars(replicas), "steps": REPLICAS.in_json(rows), "assumptions": list(ASSUMED)}


def _print_replicas(replicas: Replicas, steps: list[int]) -> None:
    from sglang_instrument.analysis.changes.replicas import ASSUMED

    all_rows = [row for row in replicas.steps.to_dicts() if row["step"] in steps]
    title = f"\n{replicas.servers} servers in place of {replicas.recorded}: a model, not a measurement"
    print_rows(REPLICAS, all_rows[:_SHOWN], title=title, cells={"saved_share": _saved_share})
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


def _saved_share(row: Mapping[str, Any]) -> float | None:
    saved, whole = row["saved_sec"], row["to_next_step_sec"]
    return None if saved is None else float(saved / whole)


def _sentences(shape: str | None, mean: dict[str, Any]) -> list[str]:
    """Return in words which side waits, and what runs behind what."""
    lines = []
    waits = [
        f"the {side} waits for the {other}: {duration(sec)} a step, "
        f"{percent(mean[f'{side}_waits_share'] or 0.0)} %"
        for side, other in (("trainer", "rollout"), ("rollout", "trainer"))
        if (sec := mean[f"{side}_waits_sec"]) is not None
    ]
    if waits:
        lines.append("; ".join(waits))
    if shape == "synchronous" and mean["to_next_step_sec"]:
        hidden = min(mean["rollout_sec"], mean["train_sec"])
        lines.append(
            "one side always waits, because they take turns: a rollout that runs ahead would save at most "
            f"{duration(hidden)} a step"
        )
    if mean["reward_alone_sec"] is not None:
        exposed, other = duration(mean["reward_alone_sec"]), duration(mean["reward_overlapped_sec"])
        lines.append(
            f"rewards: {exposed} a step on the critical path; {other}, summed over requests, behind others"
        )
    return lines
