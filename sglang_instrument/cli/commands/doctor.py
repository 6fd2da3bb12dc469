"""Find out why no file appears: what recording needs, whether it is here, and what to do about it."""

import argparse
import fcntl
import os
import platform
import shutil
import site
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sglang_instrument import __version__, native
from sglang_instrument import config as settings
from sglang_instrument.cli.plain import say
from sglang_instrument.config import Config
from sglang_instrument.errors import InstrumentError
from sglang_instrument.startup import run_ids
from sglang_instrument.startup.known_trainers import with_known_trainers

HELP: Final = """\
Check this machine, before a run or when no file appears: is the package installed and its start-up hook
active, can the log folder be written and locked, is a known trainer installed. Run it where the rollout
runs, with the same environment.

    sglang-instrument doctor
    EXPERIMENT_NAME=gsm8k_600 sglang-instrument doctor --log-dir /shared/logs
    sglang-instrument doctor --ray                  # also each node of the Ray cluster that runs here,
                                                    # and each Python of the actors that run now
    sglang-instrument doctor --rollout my_rollout.py:Agent    # what to bind in a rollout that no table knows

It imports no trainer (with --ray, it imports Ray) and leaves nothing behind. Exit code 1 if there is a
problem. Once a run has written its folder, `status` shows its processes and `check` its log.
--json prints a list of {"about", "ok" (null: neither good nor bad), "found", "todo"}."""

_LITTLE_SPACE_BYTES: Final = 2**30
ENGINE: Final = "sglang"  # its tables know calls of the engine, and neither steps nor workers


@dataclass(frozen=True)
class Diagnosis:
    """The result of one check.

    Attributes:
        about: What was checked.
        ok: Whether it is as it should be; None where the reader has to judge.
        result: What was found; `found` in JSON.
        todo: What to do if it is not ok.
    """

    about: str
    ok: bool | None
    result: str
    todo: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `doctor`."""
    parser.add_argument("--log-dir", metavar="DIR", help="folder of all runs, as in install(log_dir=...)")
    parser.add_argument(
        "--ray", nargs="?", const="auto", metavar="ADDRESS", help="also check each node of a Ray cluster"
    )
    parser.add_argument(
        "--rollout", metavar="NAME", help="FILE.py:Class or MODULE:Class: say where to bind step and request"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Print a line for each diagnosis."""
    diagnoses = list(examine(args.log_dir, args.ray, args.rollout))
    if args.json:
        from sglang_instrument.cli.tables import print_json

        print_json([_as_json(diagnosis) for diagnosis in diagnoses])
    else:
        for diagnosis in diagnoses:
            _print(diagnosis)
    return 1 if any(diagnosis.ok is False for diagnosis in diagnoses) else 0


def examine(log_dir: str | None, ray: str | None = None, rollout: str | None = None) -> Iterator[Diagnosis]:
    """Check everything that recording needs.

    Args:
        log_dir: Folder of all runs, as in `install(log_dir=...)`; None takes it from the environment.
        ray: Address of a Ray cluster whose nodes are checked, too.
        rollout: A class that no table knows, as FILE.py:Class or MODULE:Class.
    """
    yield _package()
    yield _native()
    yield _hook()
    config, complaints = _settings(log_dir)
    for complaint in complaints:
        yield Diagnosis("setting", False, complaint, "correct the variable")
    yield Diagnosis("folder", None, str(config.folder))
    yield from _folder(config)
    yield from _trainers(config)
    if rollout is not None:
        from sglang_instrument.cli.commands.doctor_rollout import examine_rollout

        for about, ok, result, todo in examine_rollout(rollout):
            yield Diagnosis(about, ok, result, todo)
    if ray is not None:
        from sglang_instrument.cli.commands.doctor_ray import examine_nodes

        for node, ok, result, todo in examine_nodes(ray, config, _nearest(config)):
            yield Diagnosis(f"node {node}", ok, result, todo)


def _as_json(diagnosis: Diagnosis) -> dict[str, Any]:
    return {"about": diagnosis.about, "ok": diagnosis.ok, "found": diagnosis.result, "todo": diagnosis.todo}


def _print(diagnosis: Diagnosis) -> None:
    mark = {True: "ok", False: "problem", None: ""}[diagnosis.ok]
    todo = f"; {diagnosis.todo}" if diagnosis.ok is False and diagnosis.todo else ""
    say(f"{mark:<8} {diagnosis.about:<9} {diagnosis.result}{todo}")


def _package() -> Diagnosis:
    folder = Path(settings.__file__).parent
    python = f"Python {platform.python_version()}"
    return Diagnosis("package", True, f"sglang_instrument {__version__} in {folder}, {python}")


def _native() -> Diagnosis:
    """Tell whether the compiled modules are used; without them recording costs several times more."""
    if native.ON:
        return Diagnosis("native", True, "the compiled modules are used")
    return Diagnosis("native", None, f"pure Python, at several times the cost: {native.REASON}")


def _hook() -> Diagnosis:
    """Look for the start-up hook, which installs in children, Ray's workers and SGLang's schedulers."""
    folders = [*site.getsitepackages(), site.getusersitepackages()]
    if any((Path(folder) / "sglang_instrument.pth").exists() for folder in folders):
        state = (
            "and this shell sets SGLANG_INSTRUMENT"
            if run_ids.is_asked(os.environ)
            else "and does nothing until SGLANG_INSTRUMENT=1 is set"
        )
        return Diagnosis("hook", True, f"the start-up hook is installed {state}")
    return Diagnosis(
        "hook",
        None,
        "this Python has no start-up hook: install() works, but only plugins of trainers and of SGLang reach "
        "children and Ray's workers; `python -m pip install .` in a checkout installs the hook",
    )


def _settings(log_dir: str | None) -> tuple[Config, list[str]]:
    complaints: list[str] = []
    config = settings.load({"log_dir": log_dir}, os.environ, complaints.append)
    return with_known_trainers(config, False, complaints.append), complaints


def _folder(config: Config) -> Iterator[Diagnosis]:
    """Write and lock a file in the folder, or in the nearest one above it that exists."""
    nearest = _nearest(config)
    try:
        with tempfile.TemporaryFile(dir=nearest) as file:
            file.write(b"\n")
            file.flush()
    except OSError as error:
        todo = "make it writable, or set SGLANG_INSTRUMENT_LOG_DIR to another folder"
        yield Diagnosis("writing", False, f"{nearest}: {error.strerror}", todo)
        return
    yield Diagnosis("writing", True, f"{nearest} is writable")
    yield _locks(nearest)
    yield _space(nearest)


def _nearest(config: Config) -> Path:
    return next(folder for folder in (config.folder, *config.folder.parents) if folder.exists())


def _locks(folder: Path) -> Diagnosis:
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".sglang_instrument-") as first:
        try:
            fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with Path(first.name).open("rb+") as second:
                fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return Diagnosis("locks", True, "file locks work: two processes of one rank get a file each")
        except OSError as error:
            return Diagnosis(
                "locks", None, f"no file locks ({error.strerror}): files are called worker_0.HOST-PID.jsonl"
            )
    return Diagnosis("locks", None, "this file system ignores locks: two processes may write one file")


def _space(folder: Path) -> Diagnosis:
    free = shutil.disk_usage(folder).free
    room = f"{free / 2**30:,.1f} GiB free"
    return Diagnosis(
        "space", free >= _LITTLE_SPACE_BYTES, room, "make room: records that cannot be written are dropped"
    )


def _trainers(config: Config) -> Iterator[Diagnosis]:
    """Resolve the patch tables against the source of the installed packages."""
    from sglang_instrument.patching.rewriting.check import check
    from sglang_instrument.patching.tables.reading import load_tables

    try:
        tables = load_tables(config.trainers or None, [Path(folder) for folder in config.patches])
    except InstrumentError as error:
        yield Diagnosis(
            "patches", False, str(error), "correct the table, or take its folder out of `patches`"
        )
        return
    seen: set[str] = set()
    for checked in check(tables):
        if checked.sites is None or checked.table.package == "sglang-instrument":  # the demo's own
            continue
        seen.add(checked.table.trainer)
        wanted = {site.region.event for site in checked.sites if site.expected}
        lost = {site.region.event for site in checked.sites if site.expected and site.state != "found"}
        package = f"{checked.table.package} {checked.version}"
        coverage = f"{checked.table.name} ({package}): {len(wanted - lost)} of {len(wanted)} events"
        missing = f", without {', '.join(sorted(lost))}" if lost else ""
        todo = f"`sglang-instrument patches check --trainer {checked.table.trainer}` shows why"
        yield Diagnosis("patches", not lost, coverage + missing, todo)
    if not seen:
        known = ", ".join(sorted({table.package for table in tables if table.package != "sglang-instrument"}))
        yield Diagnosis("patches", False, f"none of {known} is installed", "run this where the rollout runs")
    elif seen == {ENGINE}:
        from sglang_instrument.cli.commands.doctor_rollout import ALONE

        yield Diagnosis("bind", None, ALONE)
