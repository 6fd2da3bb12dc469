"""Say which setting to change: from what to what, what it saves, what it costs, and what shows it."""

from __future__ import annotations

import argparse
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Final

from sglang_instrument.analysis.tables.changes.advise import LEVERS, LIMITS, VERIFIED
from sglang_instrument.analysis.tables.changes.twin import TWIN_SETTINGS
from sglang_instrument.cli import select
from sglang_instrument.cli.answer import FOLDER, MISSING, Key
from sglang_instrument.cli.numbers import duration, percent
from sglang_instrument.cli.tables import print_json, print_line, print_rows, progress_line, reading
from sglang_instrument.errors import InstrumentError

if TYPE_CHECKING:
    from sglang_instrument.analysis.advice.advise import Advice
    from sglang_instrument.analysis.run.opening import Run
    from sglang_instrument.twin.trials.twin import TwinAnswer

HELP: Final = """\
Say which setting to change: what another value would save a step, what it costs, and what shows it.
Savings are simulated on the recorded requests, each with an 80 % interval. A lever that is only named says
what its present setting cost. No lever is told while a fault dominates the run. Then the limits that calls
meet: times, tokens, turns or retries at which many end, and how many run at once where others wait.

    sglang-instrument advise logs/gsm8k_600
    sglang-instrument advise --verify logs/before logs/after    # after the change: did it come?
    sglang-instrument advise logs/gsm8k_600 --twin "python -m sglang.launch_server --model-path M"

    setting                    now  proposed  saves s  80 % interval  share %
    max_running_requests        16        32      8.1     6.2 .. 10        14
    data.max_response_length  1024       620      4.0    2.9 .. 5.1         7"""

TABLES: Final = (LEVERS, LIMITS, VERIFIED, TWIN_SETTINGS)
_TWIN_SEC: Final = 1200.0
_SAVING: Final = {
    "saves_sec": Key("number", "seconds that a step saves on average"),
    "low": Key("number", "begin of the 80 % interval, in seconds"),
    "high": Key("number", "end of it"),
}
ANSWER: Final = {
    "folder": FOLDER,
    "sentence": Key("string", "the answer in words", optional=True),
    "levers": Key(LEVERS, optional=True),
    "together": Key(
        _SAVING, "the two best simulated levers, simulated together; null unless there are two", optional=True
    ),
    "step_sec": Key("number", "mean seconds of a step, to the begin of the next", optional=True),
    "mend_first": Key("string", "the fault that dominates the run: then no lever is told", optional=True),
    "limits": Key(LIMITS, optional=True),
    "missing": Key("array", MISSING.meaning, optional=True),
    "assumptions": Key("array", "sentences", optional=True),
    "measured": Key(TWIN_SETTINGS, "with --twin: the engine's settings, measured on a twin", optional=True),
    "twin": Key("string", "with --twin: how near the twin is to the record, in words", optional=True),
    "verified": Key(VERIFIED, "with --verify, in place of all others", optional=True),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `advise`."""
    parser.add_argument("logs", metavar="LOGS", type=Path, help=select.LOGS_HELP)
    parser.add_argument("after", metavar="AFTER", type=Path, nargs="?", help="with --verify: the run after")
    parser.add_argument(
        "--verify", action="store_true", help="what was promised for LOGS, and what came of it in AFTER"
    )
    parser.add_argument("--no-promise", action="store_true", help="do not keep what is promised for --verify")
    parser.add_argument(
        "--twin", metavar="COMMAND", help="measure the engine's settings on a twin: see `twin`"
    )
    parser.add_argument(
        "--time", metavar="SEC", type=float, default=_TWIN_SEC, help="with --twin (default: 1200)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    select.add_ray(parser)


def run(args: argparse.Namespace) -> int:
    """Print levers."""
    from sglang_instrument.analysis.advice.advise import advise
    from sglang_instrument.analysis.advice.limits import limit_table
    from sglang_instrument.analysis.advice.promises import keep_promises, name_of_run, promises_of

    after = getattr(args, "after", None)
    if getattr(args, "verify", False):
        return _verify(args, after)
    if after is not None:
        raise InstrumentError(f"advise reads one run; `advise --verify {args.logs} {after}` compares two")
    with reading() as progress:
        opened = select.open_logs(args, args.logs, progress)
        advice, limits = advise(opened), limit_table(opened).to_dicts()
    receipt = None
    if (command := getattr(args, "twin", None)) is not None:
        advice, receipt = _measured(opened, advice, command, getattr(args, "time", _TWIN_SEC))
    if not getattr(args, "no_promise", False):
        keep_promises(opened.home, promises_of(advice, name_of_run(opened.folder, opened.run_id)))
    rows = advice.rows(quote(opened.logs))
    if args.json:
        answer = {"folder": str(opened.folder), **in_json(advice, rows), "limits": LIMITS.in_json(limits)}
        print_json(answer | ({} if receipt is None else _receipt_in_json(receipt)))
        return 0
    print_advice(opened.name, advice, rows)
    for limit in limits:
        print_line(f"limit: {limit['sentence']}")
    if receipt is not None:
        _print_receipt(receipt)
    return 0


def _measured(run: Run, advice: Advice, command: str, time_sec: float) -> tuple[Advice, TwinAnswer]:
    """Measure the first three levers of the engine on a twin; return the advice with these measurements.

    No new pass begins after `time_sec`.

    Raises:
        InstrumentError: None of the levers is one of the engine.
    """
    from sglang_instrument.analysis.advice.intervals import Saving
    from sglang_instrument.analysis.advice.measured import Measurement, with_measured
    from sglang_instrument.twin.agendas.from_log import agenda
    from sglang_instrument.twin.servers.launches import split_command
    from sglang_instrument.twin.trials.receipts import measurable
    from sglang_instrument.twin.trials.twin import Twin, TwinOptions

    levers = measurable(advice.rows("LOGS"))
    if not levers:
        raise InstrumentError("no lever is a setting of the engine: a twin has nothing to measure")
    settings = tuple(lever.setting for lever in levers)
    options = TwinOptions(command=tuple(split_command(command)), settings=settings, time_sec=time_sec)
    with progress_line() as say:
        receipt = Twin(run, agenda(run), run.home.parent, options, say).measure()
    measured = {
        lever.place: Measurement(lever.value, Saving(*saving[:3]), saving.pairs)
        for lever in levers
        if (saving := receipt.savings.get(lever.setting.name)) is not None
    }
    return with_measured(advice, measured), receipt


def _how_known(rows: list[dict[str, Any]]) -> str:
    """Return in words how the savings of levers are known."""
    measured = [row["setting"] for row in rows if row["kind"] == "measured"]
    if not measured:
        return "simulated, not measured"
    return f"measured on a twin: {', '.join(measured)}"


def _receipt_in_json(receipt: TwinAnswer) -> dict[str, Any]:
    return {"measured": TWIN_SETTINGS.in_json(receipt.rows), "twin": receipt.validity.sentence}


def _print_receipt(receipt: TwinAnswer) -> None:
    """Print what a twin measured of the settings above."""
    print_line(receipt.validity.sentence, "bold")
    if receipt.rows:
        print_rows(TWIN_SETTINGS, receipt.rows, title="\nmeasured on a twin")
    else:
        print_line("no setting was measured: `twin --launch --force` does, although the twin differs")


def _verify(args: argparse.Namespace, after: Path | None) -> int:
    """Print what was promised for a run, and what came; return 1 if a promise did not hold."""
    from sglang_instrument.analysis.advice.verify import verify

    if after is None:
        raise InstrumentError("--verify needs two runs: advise --verify BEFORE AFTER")
    with reading() as progress:
        before = select.open_logs(args, args.logs, progress)
        rows = [verified.row() for verified in verify(before, select.open_logs(args, after, progress))]
    if args.json:
        print_json({"folder": str(before.folder), "verified": VERIFIED.in_json(rows)})
    else:
        print_rows(VERIFIED, rows, title=f"{before.name}: what was promised, and what came in {after}")
        if not any(row["was_changed"] for row in rows):
            print_line("The settings of both runs do not tell which was changed: these are all promises.")
        if any(row["held"] is None for row in rows):
            print_line("Steps scatter too much to tell whether a promise held: compare more of them.")
    return int(any(row["held"] is False for row in rows if row["was_changed"] is not False))


def in_json(advice: Advice, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what `--json` prints of advice, without the folder."""
    together = advice.together
    return {
        "sentence": advice.sentence,
        "levers": LEVERS.in_json(rows),
        "together": together and {"saves_sec": together.sec, "low": together.low, "high": together.high},
        "step_sec": advice.step_sec,
        "mend_first": advice.mend_first and advice.mend_first.sentence,
        "missing": advice.missing,
        "assumptions": list(advice.assumptions),
    }


def print_advice(name: str, advice: Advice, rows: list[dict[str, Any]]) -> None:
    """Print advice: the table of levers, and what each costs and rests on."""
    print_line(f"{name}: {advice.sentence}", "bold")
    if rows:
        print_rows(LEVERS, rows, title=f"a step takes {duration(advice.step_sec)}; {_how_known(rows)}")
    for row in rows:
        print_line(f"{row['setting']}: {row['rests_on']}")
        print_line(f"    costs: {row['costs']}")
        print_line(f"    evidence: sglang-instrument {row['command']}")
    if advice.together is not None:
        saving, share = advice.together, advice.together.sec / advice.step_sec
        print_line(
            f"the first two together: {duration(saving.sec)} a step ({percent(share)} %), "
            f"{saving.low:.3g} .. {saving.high:.3g} s"
        )
    for sentence in advice.missing:
        print_line(f"not recorded: {sentence}")
    for sentence in advice.assumptions if rows else ():
        print_line(sentence, "dim")
