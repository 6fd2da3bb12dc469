"""Do the actions of `profile`: start, stop, status, check, capture. Show progress and print the outcome."""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from sglang_instrument.analysis.tables.profiling.switching import CAPTURES, CHECKS
from sglang_instrument.cli.numbers import duration
from sglang_instrument.cli.profile_tables import (
    print_captures,
    print_files,
    print_findings,
    print_outcomes,
    rows_of_files,
)
from sglang_instrument.cli.tables import print_json, print_line, progress_line
from sglang_instrument.errors import InstrumentError, LogError
from sglang_instrument.profilers.from_outside.capture import CaptureResult, Progress, start_and_note
from sglang_instrument.profilers.from_outside.capture import capture as capture_all
from sglang_instrument.profilers.from_outside.checking import CheckResult, check_log, check_workers
from sglang_instrument.profilers.from_outside.notes import (
    FolderError,
    Note,
    captures,
    check_folder,
    files_of,
    mark_stopped,
    running,
)
from sglang_instrument.profilers.http_client import all_at_once
from sglang_instrument.profilers.identify_engine import EngineIdentity, identify
from sglang_instrument.profilers.options import ProfileOptions
from sglang_instrument.profilers.switching import START_SEC, STOP_SEC, SwitchOutcome, stop_all
from sglang_instrument.profilers.trace_files import files_in, wait_for_files
from sglang_instrument.profilers.workers import EngineWorker

_FILES_SEC: Final = 60.0  # for files to be complete, once the profilers have stopped


def start(args: argparse.Namespace, workers: Sequence[EngineWorker], options: ProfileOptions) -> int:
    """Start the profilers; return 1 if one did not start."""
    elsewhere = _prepare(args, workers, options)
    started, folder = start_and_note(
        workers,
        options,
        timeout_sec=args.timeout or START_SEC,
        retries=args.retries,
        api_key=args.api_key,
    )
    if args.json:
        print_json({"folder": folder and str(folder), "workers": [outcome.as_json() for outcome in started]})
        return _code(started)
    print_outcomes(started)
    if any(outcome.ok for outcome in started):
        print_line(_what_next(options, folder, elsewhere))
    return _code(started)


def stop(args: argparse.Namespace, workers: Sequence[EngineWorker], options: ProfileOptions) -> int:
    """Stop the profilers, wait until the traces are written; return 1 if one failed."""
    timeout = args.timeout or STOP_SEC
    begun = running(options.output_dir, [worker.url for worker in workers])
    notes = dict(begun.values())
    folders = [
        of_worker["folder"]
        for note in notes.values()
        for of_worker in note["workers"]
        if of_worker.get("folder")
    ]
    deadline = time.monotonic() + timeout
    with _shown() as show, _watching(folders, show):
        stopped = stop_all(workers, timeout_sec=timeout, retries=args.retries, api_key=args.api_key)
        visible = [folder for folder in folders if files_in(folder)]
        wait = max(0.0, min(deadline - time.monotonic(), _FILES_SEC))
        files = wait_for_files(visible, timeout_sec=wait) if visible else []
    for folder in notes:
        if all(outcome.ok for outcome in stopped):
            mark_stopped(folder)
    whole = all(file.whole is not False for group in files for file in group)
    if args.json:
        print_json({"workers": [outcome.as_json() for outcome in stopped], "files": rows_of_files(files)})
    else:
        print_outcomes(stopped)
        print_files(files)
        if notes and not visible:
            print_line(
                f"no trace below {options.output_dir} on this machine: traces are on the workers' machines"
            )
    return _code(stopped) or int(not whole)


def status(args: argparse.Namespace, workers: Sequence[EngineWorker], options: ProfileOptions) -> int:
    """Print each engine and what was started from here; return 1 if an engine does not answer."""
    timeout = args.timeout or 10.0
    engines = all_at_once(
        lambda worker: identify(worker.url, timeout_sec=timeout, api_key=args.api_key), workers
    )
    known = captures(options.output_dir)
    rows = [_standing(worker, engine, known) for worker, engine in zip(workers, engines, strict=True)]
    if args.json:
        print_json({"captures": CAPTURES.in_json(rows)})
    else:
        print_captures(rows)
        print_line(
            "`recording`: started from here and not stopped, with no trace yet below "
            f"{options.output_dir}; engines themselves do not tell whether their profiler runs"
        )
    return int(not all(engine.reached for engine in engines))


def check(args: argparse.Namespace, workers: Sequence[EngineWorker], options: ProfileOptions) -> int:
    """Print what would make a capture fail; return 1 if anything would."""
    findings = check_workers(workers, options, timeout_sec=args.timeout or 10.0, api_key=args.api_key)
    try:
        words = check_folder(options.output_dir, [worker.url for worker in workers]) if workers else ""
        if workers:
            findings.append(CheckResult(None, options.output_dir, "output", None if words else True, words))
    except FolderError as error:
        findings.append(CheckResult(None, options.output_dir, "output", False, str(error)))
    if args.log is not None and _may_be_vllm(findings):
        findings += check_log(args.log)
    wrong = any(finding.ok is False for finding in findings)
    if args.json:
        print_json({"ok": not wrong, "checks": CHECKS.in_json(map(vars, findings))})
    else:
        print_findings(findings)
    return int(wrong)


def capture(args: argparse.Namespace, workers: Sequence[EngineWorker], options: ProfileOptions) -> int:
    """Start, send requests, stop, list, analyse; return 1 if a worker failed or left no whole trace."""
    elsewhere = _prepare(args, workers, options)
    if options.num_steps is None and args.requests == 0 and args.timeout is None:
        raise InstrumentError("capture --num-steps 0 --requests 0 would never end; give --timeout SEC")
    with _shown() as show:
        done = capture_all(
            workers,
            options,
            requests=args.requests,
            new_tokens=args.max_new_tokens,
            wait_sec=args.timeout or 600.0,
            api_key=args.api_key,
            progress=show,
        )
    if args.json:
        print_json(_capture_json(done))
    else:
        _print_capture(done, elsewhere)
        if done.folder is not None and any(done.files):
            _analyse(done.folder)
    return int(not done.ok)


def _prepare(args: argparse.Namespace, workers: Sequence[EngineWorker], options: ProfileOptions) -> str:
    """Refuse what would stop a server or spoil a capture; return a warning about an absent folder."""
    urls = [worker.url for worker in workers]
    elsewhere = check_folder(options.output_dir, urls)
    begun = running(options.output_dir, urls)
    if begun and not args.force:
        url, (folder, note) = next(iter(begun.items()))
        age = duration(time.time() - float(note.get("started_unix", 0)))
        raise InstrumentError(
            f"{url} has been profiled for {age}, into {folder}; SGLang would silently discard that trace "
            "and start again: `profile stop` first, or --force"
        )
    return elsewhere


def _what_next(options: ProfileOptions, folder: Path | None, elsewhere: str) -> str:
    bound = (
        f"it stops by itself after {options.num_steps} forward steps"
        f"{' of each stage' if options.profile_by_stage else ''}: send requests"
        if options.num_steps is not None
        else "it records until `profile stop`, megabytes a second"
    )
    activities = options.activities or ()
    if "CUDA_PROFILER" in activities and set(activities) <= {"CUDA_PROFILER"}:
        return f"{bound}; nsys writes its report where nsys was started (docs/how-to/profiling.md)"
    where = elsewhere or f"traces: {folder or options.output_dir}"
    return f"{bound}; {where}"


def _code(outcomes: Sequence[SwitchOutcome]) -> int:
    return int(not all(outcome.ok for outcome in outcomes))


def _standing(
    worker: EngineWorker, engine: EngineIdentity, known: Sequence[tuple[Path, Note]]
) -> dict[str, Any]:
    """Return the state of one worker and of its newest capture."""
    for folder, note in known:
        for of_worker in note["workers"]:
            if of_worker.get("url") != worker.url:
                continue
            files = files_of(of_worker)
            if any(file.whole is not False for file in files):
                state = "written"
            else:
                state = "stopped" if "stopped_unix" in note else "writing" if files else "recording"
            return {
                **_row(worker, engine),
                "state": state if engine.reached or state == "written" else "lost",
                "since_sec": time.time() - float(note.get("started_unix", 0)),
                "folder": str(folder),
                "files": len(files),
                "bytes": sum(file.size for file in files),
            }
    return {
        **_row(worker, engine),
        "state": None,
        "since_sec": None,
        "folder": None,
        "files": 0,
        "bytes": 0,
    }


def _row(worker: EngineWorker, engine: EngineIdentity) -> dict[str, Any]:
    return {
        "number": worker.number,
        "url": worker.url,
        "engine": engine.name,
        "reached": engine.reached,
        "words": engine.words,
        "model": engine.model,
    }


def _may_be_vllm(findings: Sequence[CheckResult]) -> bool:
    return not any(finding.words.startswith("sglang") for finding in findings if finding.what == "reached")


def _print_capture(done: CaptureResult, elsewhere: str) -> None:
    print_outcomes(done.started)
    if done.asked:
        failed = ": the workers' own logs tell why" if done.answered < done.asked else ""
        print_line(f"{done.answered} of {done.asked} probe requests were answered{failed}")
    still_going = [outcome for outcome in done.stopped if not outcome.ok]
    if still_going:
        print_outcomes(still_going)
    print_files(done.files)
    if not any(done.files) and any(outcome.ok for outcome in done.started):
        reason = elsewhere or "no step was recorded: no request reached the workers"
        print_line(f"no trace was found: {reason}")


def _analyse(folder: Path) -> None:
    from sglang_instrument.cli.commands import trace

    parser = argparse.ArgumentParser()
    trace.add_arguments(parser)
    try:
        trace.run(parser.parse_args([str(folder), "--top", "10"]))
    except LogError as error:  # CUDA_PROFILER and MEM leave no trace to analyse
        print_line(str(error))


def _capture_json(done: CaptureResult) -> dict[str, Any]:
    return {
        "ok": done.ok,
        "folder": done.folder and str(done.folder),
        "workers": [outcome.as_json() for outcome in done.started],
        "stopped": [outcome.as_json() for outcome in done.stopped],
        "requests": {"asked": done.asked, "answered": done.answered},
        "files": rows_of_files(done.files),
    }


@contextmanager
def _shown() -> Iterator[Progress]:
    """Yield a function that shows progress on stderr, after two seconds."""
    with progress_line() as say:
        yield lambda doing, done, wanted: say(f"{doing}: {done:,} of {wanted:,}")


@contextmanager
def _watching(folders: Sequence[str], show: Progress) -> Iterator[None]:
    """Show every half second how much was written, while the block waits for it."""
    over = threading.Event()

    def watch() -> None:
        begun = time.monotonic()
        while not over.wait(0.5):
            mebibytes = sum(file.size for folder in folders for file in files_in(folder)) >> 20
            show(f"stopping for {time.monotonic() - begun:.0f} s, MiB written", mebibytes, mebibytes)

    thread = threading.Thread(target=watch, name="sglang-instrument-profile-show", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
