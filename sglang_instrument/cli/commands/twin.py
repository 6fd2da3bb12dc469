"""Replay a recorded rollout on a real engine, and measure what another setting would change."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sglang_instrument.analysis.tables.changes.twin import TWIN_PARTS, TWIN_SETTINGS
from sglang_instrument.cli import select
from sglang_instrument.cli.answer import FOLDER, MISSING, Key
from sglang_instrument.cli.tables import print_json, print_line, print_rows, progress_line, reading
from sglang_instrument.errors import InstrumentError

if TYPE_CHECKING:
    from sglang_instrument.twin.trials.twin import TwinAnswer, TwinOptions

HELP: Final = """\
Replay a recorded rollout on a real engine: the same turns, lengths, shared prompts, tools and limits, without
any text. First hold the twin against the record, then measure other settings.

    sglang-instrument twin logs/gsm8k_600 --server http://127.0.0.1:30000
    sglang-instrument twin logs/gsm8k_600 --launch "python -m sglang.launch_server --model-path M"
    sglang-instrument twin logs/gsm8k_600 --launch COMMAND --set max_running_requests=64,128 --set servers=2

`--set NAME=VALUE` adds `--NAME VALUE` to the command, one at a time; `servers` and `router` are words of the
twin's own. Each is a run: logs/gsm8k_600.twin-1 ... Exit 1: the twin differs from its record."""

TABLES: Final = (TWIN_PARTS, TWIN_SETTINGS)
ANSWER: Final = {
    "folder": FOLDER,
    "twin": Key("string", "the folder of the run that the twin recorded"),
    "sentence": Key("string", "how near the twin is to the record, in words"),
    "parts": Key(TWIN_PARTS),
    "settings": Key(TWIN_SETTINGS, "empty if none was asked for, or the twin differs"),
    "missing": MISSING,
}
_SEC: Final = 1200.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `twin`."""
    parser.add_argument("logs", metavar="LOGS", type=Path, help=select.LOGS_HELP)
    select.add_step(parser, "only this step, or these: 60-67; repeatable")
    parser.add_argument("--server", metavar="URL", action="append", help="a server that runs; repeatable")
    parser.add_argument("--launch", metavar="COMMAND", help="start servers by this command, and end them")
    parser.add_argument("--servers", metavar="N", type=int, help="start so many; default: as in the record")
    parser.add_argument("--router", metavar="POLICY", help="a router of sglang_router before them")
    parser.add_argument(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        dest="asked",
        help="a setting to measure, or NAME=VALUE,VALUE; repeatable",
    )
    parser.add_argument("--time", metavar="SEC", type=float, default=_SEC, help="with --set (default: 1200)")
    parser.add_argument(
        "--together",
        action="store_true",
        help="with --set: all servers are up, and take turns",
    )
    parser.add_argument("--every", metavar="N", type=int, default=1, help="only each N-th group of a step")
    parser.add_argument("--route", metavar="RULE", help="of calls to servers: recorded, group, call")
    parser.add_argument("--vocabulary", metavar="N", type=int, help="tokens that the model knows")
    parser.add_argument("--to", metavar="DIR", type=Path, help="for the twin's runs; default: beside LOGS")
    parser.add_argument("--force", action="store_true", help="measure settings, though the twin differs")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Play a twin, and print what came of it."""
    from sglang_instrument.analysis.run.opening import Run
    from sglang_instrument.twin.agendas.from_log import agenda
    from sglang_instrument.twin.agendas.planned import thinned
    from sglang_instrument.twin.trials.twin import Twin

    options = _options(args)
    with reading() as progress:
        record = Run.open(args.logs, progress)
        steps = select.steps_of(record, _with_validate(args), record.everything)
        planned = thinned(agenda(record, steps), args.every)
    log_dir = record.home.parent if args.to is None else args.to
    with progress_line() as say:
        answer = Twin(record, planned, log_dir, options, say).measure()
    is_twin = bool(answer.validity.steps) and not answer.validity.differing
    if args.json:
        print_json({"folder": str(record.folder), **in_json(answer)})
    else:
        print_twin(str(args.logs), answer, options)
    return 0 if is_twin else 1


def _with_validate(args: argparse.Namespace) -> argparse.Namespace:
    return argparse.Namespace(**{**vars(args), "validate": False})


def _options(args: argparse.Namespace) -> TwinOptions:
    """Return what the arguments ask for; raise where they do not fit together."""
    from sglang_instrument.twin.playing.routes import ROUTES
    from sglang_instrument.twin.servers.launches import split_command
    from sglang_instrument.twin.trials.settings import settings_of
    from sglang_instrument.twin.trials.twin import TwinOptions

    if args.route not in (None, *ROUTES):
        raise InstrumentError(f"--route {args.route!r}: must be one of {', '.join(ROUTES)}")
    if bool(args.server) == bool(args.launch):
        raise InstrumentError("the twin needs servers: either --server URL, or --launch COMMAND")
    if args.server and (args.servers is not None or args.router):
        raise InstrumentError("--servers and --router go with --launch")
    if args.servers is not None and args.servers < 1:
        raise InstrumentError(f"--servers {args.servers}: must be at least 1")
    if args.server and args.asked:
        raise InstrumentError("--set needs --launch: a running server has its settings already")
    for url in args.server or ():
        if not url.startswith(("http://", "https://")):
            raise InstrumentError(f"--server {url!r}: must begin with http:// or https://")
    command = tuple(split_command(args.launch)) if args.launch else ()
    return TwinOptions(
        servers=tuple(args.server or ()),
        command=command,
        count=args.servers,
        router=args.router,
        settings=tuple(settings_of(args.asked)),
        time_sec=args.time,
        together=args.together,
        force=args.force,
        route=args.route,
        vocabulary=args.vocabulary,
    )


def in_json(answer: TwinAnswer) -> dict[str, Any]:
    """Return what `--json` prints, without the folder of the record."""
    return {
        "twin": str(answer.folder),
        "sentence": answer.validity.sentence,
        "parts": TWIN_PARTS.in_json([part.row() for part in answer.validity.parts]),
        "settings": TWIN_SETTINGS.in_json(answer.rows),
        "missing": list(answer.missing),
    }


def print_twin(logs: str, answer: TwinAnswer, options: TwinOptions) -> None:
    """Print validity, the settings, and what to read next."""
    rows = [part.row() for part in answer.validity.parts]
    title = f"{logs} and its twin, {answer.validity.steps} steps"
    print_rows(TWIN_PARTS, rows, title=title, explained=not answer.rows)
    print_line(answer.validity.sentence, "bold")
    if answer.rows:
        print_rows(TWIN_SETTINGS, answer.rows, title="\nsettings, measured on the twin")
        if not any(row["is_best"] for row in answer.rows):
            print_line("no setting is faster than all others by more than noise; --time SEC measures longer")
    elif options.settings:
        print_line("no setting was measured: --force does, although the twin is not like the record")
    for sentence in answer.missing:
        print_line(f"agenda: {sentence}")
    runs = " and ".join(shlex.quote(str(folder)) for folder in answer.folders.values())
    print_line(f"recorded: {runs}")
    print_line(
        f"next: sglang-instrument compare {shlex.quote(logs)} {shlex.quote(str(answer.folder))}", "dim"
    )
