"""Switch instrumentation on and off in this process: `install()`, `uninstall()`, `status()`, `flush()`."""

import os
import sys
from _thread import RLock
from collections.abc import Iterable, Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any, Final

import sglang_instrument
from sglang_instrument import config as settings
from sglang_instrument import launchers
from sglang_instrument.config import Config, Detail, Durability, EngineDetail, FollowerPriority, Sync
from sglang_instrument.errors import ConfigError
from sglang_instrument.recording.safety import notices
from sglang_instrument.startup import run_ids
from sglang_instrument.startup.process_ends import ProcessEnds

if TYPE_CHECKING:
    from sglang_instrument.startup.session import Session

_session: "Session | None" = None
_called = False
_lock = RLock()


def install(
    config: Config | None = None,
    /,
    *,
    experiment: str | None = None,
    log_dir: str | PathLike[str] | None = None,
    run_id: str | None = None,
    role: str | None = None,
    sync: Sync | None = None,
    nvtx: bool | None = None,
    durability: Durability | None = None,
    detail: Detail | None = None,
    engine_detail: EngineDetail | None = None,
    request_header: str | None = None,
    sample_requests: float | None = None,
    log_error_messages: bool | None = None,
    hang_after_sec: float | None = None,
    open_now_sec: float | None = None,
    memory_limit_mb: int | None = None,
    patches: str | PathLike[str] | Iterable[str | PathLike[str]] | None = None,
    trainers: str | Iterable[str] | None = None,
    all_ranks: bool | None = None,
    scalars: bool | None = None,
    follower_priority: FollowerPriority | None = None,
    profile_steps: str | None = None,
    profile_workers: str | None = None,
    profile_options: str | None = None,
    profile_when: str | None = None,
    profile_router: str | None = None,
) -> None:
    """Record every event of every rollout in this process and in its children, from now on.

    A keyword that is not given is read from the environment variable `SGLANG_INSTRUMENT_<KEYWORD>`. A second
    call changes nothing. A function that cannot be patched is left out, and `status()` names it.

    Args:
        config: The same settings as one object. A field with its default value counts as not given.
        experiment: Name of the run's folder, one path component. Also read from `EXPERIMENT_NAME`.
            Default "multiturn_log_dir".
        log_dir: Folder of all runs. Default "logs", in the working directory.
        run_id: Id of the run. The driver creates one and its workers inherit it: leave it empty.
        role: The role of this process: worker, trainer, reward, server, scheduler. Default "worker".
        sync: How step-level spans of synchronous code wait for the GPU at both ends. "auto": for the thread's
            stream, where this process already uses a GPU; "always": by `torch.cuda.synchronize()`; "off";
            "events": never, CUDA events measure the GPU's own time in `device_sec`. Default "auto".
        nvtx: Whether spans are also NVTX ranges, which Nsight Systems shows.
        durability: "buffered": records are written within 100 ms; "line": before the span's exit returns.
            Default "buffered".
        detail: The finest records that are kept: "step", "request", "turn" or "all". Default "all".
        engine_detail: What SGLang's own processes record: "off", "requests" (a few records per request) or
            "batches" (also one per forward pass). Default "requests".
        request_header: The header of HTTP with which a gateway hands the id of the rollout's request on to
            SGLang, such as "x-request-id"; see docs/how-to/gateway.md. `traceparent` needs no setting.
        sample_requests: Share of the requests whose records are kept, 0 to 1; slow requests are always kept.
            Default 1.0.
        log_error_messages: Whether the message of an exception is logged beside its type.
        hang_after_sec: Age in seconds at which an open span is first logged as `open_spans`. Default 30.0.
        open_now_sec: Seconds between two `open_now` records, which are written while requests are open for
            whoever follows the run; 0 writes none. Default 2.0.
        memory_limit_mb: Limit in MiB on records that wait to be written; above it, new records are dropped.
            Default 64.
        patches: Folders with your own patch tables, read after the shipped ones. One string may name several
            folders, separated as in PATH.
        trainers: Trainers whose patch tables are used, such as "verl". Empty means all, "none" means
            none.
        all_ranks: Whether each rank of a tensor-parallel group writes a file; otherwise only the first does.
        scalars: Whether a process beside the training computes what is known of each finished step, and the
            trainer's tracker gets it as `rollout/...`; see docs/how-to/tracker.md.
        follower_priority: Of that process: "idle" runs only where nothing else wants to, "low" is nice 19,
            "normal" as any process. Default "idle".
        profile_steps: Steps in which the engines' profilers record, such as "5-7,20".
        profile_workers: Workers or servers whose engines are profiled, such as "0-3" or "all". Default "0".
        profile_options: What the profilers record: "num_steps=20,activities=CPU+GPU"; see
            docs/how-to/profiling.md.
        profile_when: Slow requests that are also profiled: "request>60s"; at most once in 10 minutes.
        profile_router: Address of the servers' router, for trainers whose objects do not hold it.

    Raises:
        ConfigError: A given setting has an invalid value.
    """
    _install(**locals())  # these are the parameters alone; a second list of them could differ


def _install(config: Config | None, **keywords: object) -> None:
    global _session, _called
    given = settings.given_in(config)
    given |= {name: value for name, value in keywords.items() if value is not None}
    with _lock:
        _called = True
        if _session is not None:
            return
        is_child = run_ids.DRIVER in os.environ
        try:
            loaded = _checked(settings.load(given, os.environ, _complain), "trainers" in given)
            if any(name.startswith("profile_") for name in given):
                _check_plan(loaded)
            _session = _started(loaded)
        except ConfigError:
            raise
        except Exception as error:  # a broken table or disk must not stop a training that begins
            notices.log_swallowed("install()", error)
            return
        _guarded("install()", _process_ends.hook)
        if not is_child and not launchers.rank_of(os.environ):
            _guarded("install()", _announce)


def uninstall() -> None:
    """Restore everything that `install()` changed, and write all records, within 2 s."""
    global _session, _called
    with _lock:
        _called = True
        if _session is not None:
            session, _session = _session, None
            _guarded("uninstall()", session.stop)


def installed() -> bool:
    """Return whether this process is instrumented."""
    return _session is not None


def was_called() -> bool:
    """Return whether `install()` or `uninstall()` was called here, or in a parent before the fork."""
    return _called


def child_environment() -> Mapping[str, str]:
    """Return the environment variables for children and Ray workers; empty while nothing is installed."""
    return {} if _session is None else _session.child_environment()


def flush(timeout_sec: float = 2.0) -> bool:
    """Write all records so far; return whether that was done within `timeout_sec`."""
    session = _session
    return session is None or session.recorder.flush(timeout_sec)


def status() -> Mapping[str, Any]:
    """Return the state of the instrumentation in this process.

    Returns:
        `installed`; and, while installed, `folder` (absolute), `run_id`, `versions`, `settings`,
        `patches` (each with its event, target and state: found, pending, missing, ambiguous, changed, ...),
        `records` (recorded, waiting, changed, dropped), `open_spans`, and `notices` (what went wrong).
    """
    session = _session
    return {"installed": False, "notices": notices.noticed()} if session is None else session.status()


def scalars(step: int) -> dict[str, float]:
    """Return what is known of a training step: `wandb.log(metrics | scalars(step), step=step)`.

    It never waits: a step is known some seconds after its last worker ended it. It needs
    `install(scalars=True)`.

    Args:
        step: The number of the step, as the rollout's workers know it.

    Returns:
        Numbers by name, such as "rollout/step_sec"; {} while the step is not known.
    """
    session = _session
    return {} if session is None or session.scalars is None else session.scalars.of(step)


def _started(config: Config) -> "Session":
    from sglang_instrument.startup.session import Session

    for name in sglang_instrument.__all__:
        getattr(sglang_instrument, name)  # import it now: an exiting interpreter cannot
    session = Session(config if config.run_id else config.with_run_id(run_ids.new_run_id(os.environ)))
    try:
        session.start()
    except BaseException:
        _guarded("install()", session.stop)
        raise
    return session


def _checked(config: Config, names_trainers: bool) -> Config:
    """Return the settings without unknown trainers; raise ConfigError if a keyword names them."""
    from sglang_instrument.startup.known_trainers import with_known_trainers

    return with_known_trainers(config, names_trainers, _complain)


def _check_plan(config: Config) -> None:
    """Raise ConfigError for keywords whose profiling plan cannot be read."""
    from sglang_instrument.profilers.in_training.recording_hooks import plan_of

    plan_of(config)


def _announce() -> None:
    """Print one line for the user who started this process, if there is a standard error."""
    if _session is not None and sys.stderr is not None:
        print(_session.announcement(), file=sys.stderr)  # noqa: T201


def _complain(text: str) -> None:
    notices.notice(f"setting: {text}", text)


def _before_fork() -> None:
    if _session is not None:
        _guarded("before fork", _session.prepare_fork)


def _after_fork() -> None:
    global _lock
    _lock = RLock()  # a thread that does not exist in this child may hold the parent's lock
    if _session is not None:
        _guarded("after fork", _session.restart_in_child)


def _at_exit() -> None:
    if _session is not None:
        _guarded("at exit", _session.end)


_process_ends: Final = ProcessEnds(_before_fork, _after_fork, _at_exit)


def _guarded(where: str, action: Any) -> None:
    try:
        action()
    except Exception as error:
        notices.log_swallowed(where, error)
