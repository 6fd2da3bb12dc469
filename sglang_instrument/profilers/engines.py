"""Start and stop profilers from Python: of servers, of engines in this process, of trainers' adapters."""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, Final

from sglang_instrument.errors import InstrumentError
from sglang_instrument.profilers.options import ProfileOptions, read_options
from sglang_instrument.profilers.switching import START_SEC, STOP_SEC, SwitchOutcome, new_profile_id
from sglang_instrument.profilers.switching import start_all as start_workers
from sglang_instrument.profilers.switching import stop_all as stop_workers
from sglang_instrument.profilers.trainers import ReadAttribute, addresses_of, attribute, router_of
from sglang_instrument.profilers.workers import EngineWorker, workers_behind

_LOOP_SEC: Final = 30.0  # wait this long for an engine's event loop, which its first request creates
_POLL_SEC: Final = 0.02


class ProfileError(InstrumentError):
    """A profiler could not be started or stopped."""


def start(target: Any, options: ProfileOptions | None = None, /, **fields: Any) -> list[SwitchOutcome]:
    """Start the profiler of `target`, or of several targets in a list.

    Args:
        target: An address; a `sglang.Engine`, or verl's subclasses; an adapter of verl's or an engine of
            slime's that speaks to a server; slime's `args`, with its router; or a list of these.
        options: What to record; limited to 3 forward steps by default.
        **fields: Fields of the options, which win over `options`: `num_steps=20, activities=["CPU", "GPU"]`.

    Raises:
        ProfileError: A profiler did not start; the message says which one, and why.
    """
    chosen = read_options(fields, options)
    named = chosen if chosen.profile_id else chosen.with_(profile_id=new_profile_id())
    engines, urls = _engines_and_urls(target)
    outcomes = [
        start_engine(engine, named, number, timeout_sec=START_SEC) for number, engine in enumerate(engines)
    ]
    outcomes += start_workers(_workers(urls, len(engines)), named)
    return _raise_if_failed(outcomes)


def stop(target: Any, /, *, timeout_sec: float = STOP_SEC) -> list[SwitchOutcome]:
    """Stop the profiler of `target`, or of several; return when their traces are written.

    Raises:
        ProfileError: A profiler did not stop. A profiler that is not running is no error.
    """
    engines, urls = _engines_and_urls(target)
    outcomes = [stop_engine(engine, number, timeout_sec=timeout_sec) for number, engine in enumerate(engines)]
    return _raise_if_failed(outcomes + stop_workers(_workers(urls, len(engines)), timeout_sec=timeout_sec))


def start_capture_profile(
    target: Any, options: ProfileOptions | None = None, /, **fields: Any
) -> list[SwitchOutcome]:
    """Start to record until `stop_capture_profile`, without a limit unless one is given."""
    return start(target, options, **{"num_steps": 0, **fields})


# The names that trainers use for them.
start_profile = start_profile_auto_stop = start
stop_profile = stop_capture_profile = stop


def start_engine(
    engine: Any, options: ProfileOptions, number: int, *, timeout_sec: float, name: str | None = None
) -> SwitchOutcome:
    """Start the profiler of an engine in this process; `name` is its worker's."""
    profile_id = f"{options.profile_id}-{name or f'worker_{number}'}"
    folder = f"{options.output_dir.rstrip('/')}/{options.profile_id}/{name or f'worker_{number}'}"
    body = options.body(folder, profile_id)
    return _switched(
        engine,
        "start_profile",
        lambda manager: _start_call(manager, body),
        body,
        timeout_sec,
        number,
        profile_id,
        folder,
    )


def stop_engine(engine: Any, number: int, *, timeout_sec: float) -> SwitchOutcome:
    """Stop the profiler of an engine in this process."""
    return _switched(
        engine, "stop_profile", lambda manager: manager.stop_profile(), {}, timeout_sec, number, "", ""
    )


def is_engine(thing: Any, read: ReadAttribute = attribute) -> bool:
    """Return whether an object is an engine in this process, sglang's own or verl's, with its manager.

    Args:
        thing: Any object.
        read: Returns an attribute of an object by name, or None.
    """
    manager = read(thing, "tokenizer_manager")
    return manager is not None and read(manager, "start_profile") is not None


def _engines_and_urls(target: Any) -> tuple[list[Any], list[str]]:
    engines: list[Any] = []
    urls: list[str] = []
    for item in target if isinstance(target, (list, tuple, set)) else [target]:
        router = None if isinstance(item, str) else router_of(item)
        if is_engine(item):
            engines.append(item)
        elif router is not None:
            urls += [worker.url for worker in workers_behind([router])]
        elif addresses := addresses_of(item):
            urls += addresses
        elif callable(getattr(item, "start_profile", None)) and callable(getattr(item, "stop_profile", None)):
            engines.append(item)
        else:
            raise ProfileError(
                f"{type(item).__name__} has no profiler that we know; give an address, a sglang.Engine, "
                "or an object of the trainer's that knows its servers or its router"
            )
    return engines, list(dict.fromkeys(urls))


def _workers(urls: list[str], begin: int) -> list[EngineWorker]:
    return [EngineWorker(begin + number, url) for number, url in enumerate(urls)]


def _raise_if_failed(outcomes: list[SwitchOutcome]) -> list[SwitchOutcome]:
    failed = [outcome for outcome in outcomes if not outcome.ok]
    if failed:
        raise ProfileError(
            "; ".join(f"worker {outcome.number} ({outcome.url}): {outcome.words}" for outcome in failed)
        )
    return outcomes


def _start_call(manager: Any, body: dict[str, Any]) -> Any:
    """Call a tokenizer manager's start_profile as its version needs it: fields; from 0.5.15 on, a request."""
    parameters = inspect.signature(manager.start_profile).parameters
    if "req" not in parameters:
        return manager.start_profile(**{key: value for key, value in body.items() if key in parameters})
    io_struct = sys.modules["sglang.srt.managers.io_struct"]
    kind = io_struct.ProfileReqType.START_PROFILE
    known = (
        getattr(io_struct.ProfileReq, "__struct_fields__", None)
        or inspect.signature(io_struct.ProfileReq).parameters
    )
    fields = {key: value for key, value in body.items() if key in known}
    return manager.start_profile(io_struct.ProfileReq(req_type=kind, **fields))


def _switched(
    engine: Any,
    method: str,
    call: Callable[[Any], Any],
    body: dict[str, Any],
    timeout_sec: float,
    number: int,
    profile_id: str,
    folder: str,
) -> SwitchOutcome:
    begun = time.monotonic()
    starting = method == "start_profile"
    words, state = "", "started" if starting else "stopped"
    try:
        if is_engine(engine):
            _in_its_loop(engine, call, timeout_sec)
        else:
            getattr(engine, method)(**body)
    except Exception as error:
        words, state = f"{type(error).__name__}: {error}", "failed"
        if "not in progress" in str(error):
            state = "idle"
    ok = state != "failed"
    kind = f"{type(engine).__module__.partition('.')[0]} {type(engine).__name__}"
    return SwitchOutcome(
        number, "in this process", ok, state, kind, words, profile_id, folder, [], time.monotonic() - begun
    )


def _in_its_loop(engine: Any, call: Callable[[Any], Any], timeout_sec: float) -> None:
    """Run a call to the engine's manager in the manager's event loop, which receives the replies."""
    manager = engine.tokenizer_manager
    loop = _loop_of(engine, manager)
    try:
        here = asyncio.get_running_loop()
    except RuntimeError:
        here = None
    if here is not None and here is loop:
        raise ProfileError(
            "this would block the engine's own event loop; use await asyncio.to_thread(start, engine)"
        )
    if not loop.is_running() and threading.current_thread() is threading.main_thread():
        loop.run_until_complete(call(manager))
        return
    # In another thread, the loop's own thread is about to run a loop that is not running now.

    async def switch() -> None:
        await call(manager)

    future = asyncio.run_coroutine_threadsafe(switch(), loop)
    try:
        future.result(timeout_sec)
    except FutureTimeoutError:
        future.cancel()
        raise TimeoutError(f"the engine's event loop did not answer within {timeout_sec:g} s") from None


def _loop_of(engine: Any, manager: Any) -> asyncio.AbstractEventLoop:
    """Return the event loop in which the manager receives replies; its first request creates it."""
    in_main = threading.current_thread() is threading.main_thread()
    deadline = time.monotonic() + (0 if in_main else _LOOP_SEC)
    while getattr(manager, "event_loop", None) is None and time.monotonic() < deadline:
        time.sleep(_POLL_SEC)
    loop = getattr(manager, "event_loop", None) or getattr(engine, "loop", None)
    if not isinstance(loop, asyncio.AbstractEventLoop):
        raise ProfileError("the engine has no event loop yet: its first request creates it")
    return loop
