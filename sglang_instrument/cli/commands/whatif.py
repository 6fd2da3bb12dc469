"""Estimate how long steps would take under caps, over-sampling, a faster event, or rebalanced requests."""

from __future__ import annotations

import argparse
import difflib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sglang_instrument.analysis.tables.changes.whatif import PREDICTED_STEPS
from sglang_instrument.cli import select
from sglang_instrument.cli.answer import FOLDER, Key
from sglang_instrument.cli.commands import advise
from sglang_instrument.cli.numbers import duration, percent
from sglang_instrument.cli.tables import print_json, print_line, print_rows, reading
from sglang_instrument.errors import InstrumentError, LogError

if TYPE_CHECKING:
    import polars as pl

    from sglang_instrument.analysis.changes.replaying.rules import Rules
    from sglang_instrument.analysis.executors.executor import Progress
    from sglang_instrument.analysis.run.opening import Run

HELP: Final = """\
Estimate how long each step would take under other rules: replay the requests at servers of the fitted speed
and in the pools of tools and rewards. Where the fitted speeds alone miss the recorded steps by 5 %, it warns.
Without a rule, it prints what `advise` does.

    sglang-instrument whatif logs/gsm8k_600 --max-tokens 600 --max-turns 3
    sglang-instrument whatif logs/gsm8k_600 --scale turn_tool_parsing=0.5 --scale reward=0
    sglang-instrument whatif logs/gsm8k_600 --max-tokens 600 --validate-with logs/capped   # a capped run

    step  recorded s  predicted s  saved %  ended early  their reward  mean reward
    12          38.4         31.2       19  41 of 256            0.22         0.61"""

TABLES: Final = (PREDICTED_STEPS,)
_SPEED: Final = {
    "call_sec": Key("number", "seconds of a call before its first token"),
    "context_sec": Key("number", "seconds of prefill for each token of the request's earlier replies"),
    "token_sec": Key("number", "seconds a token of its reply"),
    "crowd_sec": Key("number", "seconds a token more for each call in the engine, this one included"),
    "shared": Key("boolean", "whether all workers share one engine"),
    "limit": Key("integer", "how many calls it runs at once; null for any number"),
    "servers": Key("integer", "whose own logs tell the speed of decoding; null where none do"),
    "error": Key("number", "half of the calls are farther from this speed; 0.2 is 20 %"),
    "replay_error": Key("number", "how far off half of the recorded steps are by the fitted speeds alone"),
}
_POOL: Final = {
    "name": Key("string", "the event, with the tool's name"),
    "places": Key("integer", "how many calls run at once"),
    "waited_share": Key("number", "of the time of its calls"),
}
_VALIDATION: Final = {
    "steps": Key("integer", "that both runs have"),
    "predicted_sec": Key("number", "geometric mean over them, without barriers"),
    "real_sec": Key("number", "the same of the other run"),
    "ratio": Key("number", "predicted by real"),
    "ratio_at_least": Key("number", "begin of its 95 % interval; null with fewer than two steps"),
    "ratio_at_most": Key("number", "end of the interval"),
}
ANSWER: Final = {
    "folder": FOLDER,
    "assumptions": Key("array", "sentences: what the model takes for granted"),
    "engine": Key(_SPEED, "the fitted speed; null with --refill, or for too few calls with known tokens"),
    "pools": Key(_POOL, "tools and rewards that wait for a place; empty with --refill", is_list=True),
    "steps": Key(PREDICTED_STEPS),
    "validation": Key(_VALIDATION, "with --validate-with", optional=True),
}
_CAPS: Final = ("max_tokens", "max_turn_tokens", "max_turns", "max_seconds", "oversample")
_ROUGH: Final = 0.05  # of a step
_SCALED: Final = "engine, tool, interaction, reward, or the name of an event"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `whatif`."""
    select.add_arguments(parser)
    parser.add_argument("--max-tokens", type=int, metavar="N", help="cap a response, all turns together")
    parser.add_argument(
        "--max-turn-tokens", type=int, metavar="N", help="cap one reply, as max_new_tokens does"
    )
    parser.add_argument("--max-turns", type=int, metavar="N", help="cap the turns of a request")
    parser.add_argument("--max-seconds", type=float, metavar="S", help="cap the time of a request")
    parser.add_argument(
        "--oversample", type=float, metavar="X", help="end a step when 1 / (1 + X) of its requests are done"
    )
    parser.add_argument(
        "--scale",
        action="append",
        default=[],
        metavar="EVENT=F",
        help="multiply the time of an event or a kind of work",
    )
    parser.add_argument(
        "--rebalance", action="store_true", help="spread the requests evenly over the workers"
    )
    parser.add_argument(
        "--refill",
        choices=("sample", "group"),
        metavar="BY",
        help="begin new samples by sample, or by group",
    )
    parser.add_argument("--validate-with", type=Path, metavar="RUN", help="a run recorded under these rules")


def run(args: argparse.Namespace) -> int:
    """Print recorded and predicted times."""
    from sglang_instrument.analysis.changes import refill, whatif
    from sglang_instrument.analysis.changes.replaying.waits import waits_of

    if _asks_nothing(args):
        return advise.run(args)
    rules = None if args.refill else _rules(args)
    if args.refill:
        _demand_alone(args)
    with reading() as progress:
        opened = select.open_logs(args, args.logs, progress)
        select.steps_of(opened, args)
        if opened.digest.steps.is_empty():
            raise LogError(f"{opened.name}: no step has a record yet")
        if rules is None:
            engine, work_pools, assumptions = None, [], refill.ASSUMPTIONS
            predicted = refill.refill_steps(opened.digest, args.refill)
        else:
            times = _times(opened, rules, progress)
            waits = waits_of(opened)
            model = whatif.Model(opened.digest, waits=waits)
            engine, work_pools, assumptions = model.engine, waits.pools, whatif.ASSUMPTIONS
            predicted = model.predict(rules, times)
        table = select.of_steps(opened, predicted, args)
        other = None if args.validate_with is None else select.open_logs(args, args.validate_with, progress)
    steps = table.to_dicts()
    validation = None if other is None else whatif.validation_of(table, other.digest)
    if args.json:
        validated = {} if validation is None else {"validation": validation}
        answer = {"assumptions": list(assumptions), "engine": engine, "pools": work_pools}
        in_steps = {"steps": PREDICTED_STEPS.in_json(steps)}
        print_json({"folder": str(opened.folder), **answer, **in_steps, **validated})
        return 0
    print_rows(PREDICTED_STEPS, steps, title=f"{opened.name}: a model, not a measurement")
    was, new = (sum(row[name] for row in steps) for name in ("recorded_sec", "predicted_sec"))
    print_line(f"all of these: {duration(was)} recorded, {duration(new)} predicted")
    if rules is not None:
        _print_engine(engine)
    for pool in work_pools:
        waited = percent(pool["waited_share"])
        print_line(
            f"{pool['name']}, fitted: {pool['places']} calls run at once; {waited} % of their time is waiting"
        )
    for assumption in assumptions:
        print_line(assumption)
    if validation is not None:
        _print_validation(args.validate_with, validation)
    return 0


def _print_engine(engine: dict[str, Any] | None) -> None:
    if engine is None:
        print_line(
            "engine: too few calls with known tokens; "
            "each call is assumed to take time in proportion to its tokens"
        )
        return
    token, crowd = (duration(engine[name]) for name in ("token_sec", "crowd_sec"))
    within = f"half of the calls within {percent(engine['error'])} %"
    if engine["servers"] is not None:
        print_line(
            f"engine, by its own logs: {token} a token and {crowd} more for each call that decodes at the "
            f"same of {engine['servers']} servers; {within}"
        )
    else:
        whose = "all workers" if engine["shared"] else "a worker"
        print_line(
            f"engine, fitted: {duration(engine['call_sec'])} a call, {token} a token and {crowd} more for "
            f"each call of {whose} in it; {within}"
        )
    if engine["limit"] is not None:
        print_line(f"engine, fitted: it runs {engine['limit']} calls at once; the others wait in their order")
    error = engine["replay_error"]
    if error is not None and error >= _ROUGH:
        print_line(
            f"Predictions are rough: half of the recorded steps are {percent(error)} % off by these speeds "
            "alone. Calls also wait for something that the model does not know."
        )


def _print_validation(real: Path, validation: dict[str, Any]) -> None:
    predicted, measured = (duration(validation[name]) for name in ("predicted_sec", "real_sec"))
    low, high = validation["ratio_at_least"], validation["ratio_at_most"]
    interval = "too few steps for an interval" if low is None else f"95 % interval {low:.2f} .. {high:.2f}"
    print_line(
        f"compared with {real}: predicted {predicted} a step, measured {measured}: "
        f"{validation['ratio']:.2f} x, {interval}"
    )


def _times(opened: Run, rules: Rules, progress: Progress) -> pl.DataFrame | None:
    """Return the times of the events that are scaled by name; None if only kinds of work are scaled."""
    from sglang_instrument.analysis.digests.digest import KINDS

    events = [name for name in rules.scale if name not in KINDS]
    if not events:
        return None
    times = opened.event_times(events, progress)
    recorded = times["event"].unique().to_list()
    for name in events:
        if name not in recorded:
            names = opened.read_events(int(opened.digest.steps["step"][0]))["event"].unique().to_list()
            near = difflib.get_close_matches(name, [*names, *KINDS], n=3) or sorted(names)
            raise LogError(f"{opened.name}: no event {name!r}; the events are: {', '.join(near)}")
    return times


def _rules(args: argparse.Namespace) -> Rules:
    from sglang_instrument.analysis.changes.replaying.rules import Rules

    for name in _CAPS:
        value = getattr(args, name)
        if value is not None and value <= 0:
            raise InstrumentError(f"--{name.replace('_', '-')} must be above 0, got {value}")
    return Rules(
        max_tokens=args.max_tokens,
        max_turn_tokens=args.max_turn_tokens,
        max_turns=args.max_turns,
        max_seconds=args.max_seconds,
        oversample=args.oversample,
        scale=_scales(args.scale),
        rebalance=args.rebalance,
    )


def _asks_nothing(args: argparse.Namespace) -> bool:
    """Return whether no rule is given, and nothing that goes with one."""
    alone = (args.refill, args.step, args.validate, args.validate_with, args.scale, args.rebalance)
    return not any(alone) and all(getattr(args, name) is None for name in _CAPS)


def _demand_alone(args: argparse.Namespace) -> None:
    if any(getattr(args, name) is not None for name in _CAPS) or args.scale or args.rebalance:
        raise InstrumentError("--refill goes with no other rule: it takes the recorded time of each sample")


def _scales(texts: list[str]) -> dict[str, float]:
    scales: dict[str, float] = {}
    for text in texts:
        event, factor = _scale(text)
        if event in scales:
            raise InstrumentError(f"--scale {text}: {event} is scaled twice")
        scales[event] = factor
    return scales


def _scale(text: str) -> tuple[str, float]:
    """Return the event or kind of work that EVENT=F means, and F."""
    from sglang_instrument.schema import kind_of

    event, _, factor = text.partition("=")
    try:
        scale = float(factor)
    except ValueError:
        scale = -1.0
    if not event or not 0 <= scale < float("inf"):
        raise InstrumentError(f"--scale {text}: must be EVENT=F with F >= 0 and EVENT {_SCALED}")
    if kind_of(event).phase in ("step", "barrier"):
        raise InstrumentError(f"--scale {text}: steps and barriers are predicted and cannot be scaled")
    return event, scale
