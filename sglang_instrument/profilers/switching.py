"""Start and stop the profilers of many workers at the same time, and report the outcome for each."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from sglang_instrument.profilers.http_client import Reply, all_at_once, ask, in_thread
from sglang_instrument.profilers.identify_engine import (
    RPC_ADVICE,
    START,
    STOP,
    VLLM_ADVICE,
    EngineIdentity,
    identify,
)
from sglang_instrument.profilers.options import ProfileOptions
from sglang_instrument.profilers.workers import EngineWorker

START_SEC: Final = 60.0
STOP_SEC: Final = 30 * 60.0
_RETRY_AFTER_SEC: Final = 1.0
_IDENTIFY_SEC: Final = 30.0


@dataclass(frozen=True)
class SwitchOutcome:
    """The outcome of starting or stopping one worker's profiler.

    Attributes:
        number: Of the worker; url: its address.
        ok: Whether it succeeded.
        state: started, stopped, idle (stop: nothing ran, or it had stopped by itself) or failed.
        engine: Engine and version.
        words: What a person should know, such as why it failed and what to do.
        profile_id: Of its capture; folder: of its files, on its own machine. Empty for `stop`.
        notices: Requested options that it does not support.
        sec: How long it took.
    """

    number: int
    url: str
    ok: bool
    state: str
    engine: str
    words: str
    profile_id: str = ""
    folder: str = ""
    notices: list[str] = field(default_factory=list)
    sec: float = 0.0
    ranks: int | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the outcome for `--json`."""
        return asdict(self)


def new_profile_id() -> str:
    """Return a default name for a capture: its start time and four random characters."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def start_all(
    workers: Sequence[EngineWorker],
    options: ProfileOptions,
    *,
    timeout_sec: float = START_SEC,
    retries: int = 1,
    api_key: str | None = None,
) -> list[SwitchOutcome]:
    """Start the profilers of all workers at the same time.

    SGLang answers once its schedulers have confirmed that they record, so the answer is the verification. At
    the same time, each server is asked for its version; fields that it is too old for are named, since it
    ignores them.

    Args:
        workers: The workers to start.
        options: What to record.
        timeout_sec: For each worker.
        retries: How often to ask a worker again that was not reached; one that may have received it is not
            asked.
        api_key: The servers' admin key, if they have one.
    """
    named = options if options.profile_id else options.with_(profile_id=new_profile_id())

    def start(worker: EngineWorker) -> SwitchOutcome:
        profile_id = f"{named.profile_id}-worker_{worker.number}"
        # A folder per worker: their ranks have equal names, and old servers ignore profile_id.
        folder = f"{named.output_dir.rstrip('/')}/{named.profile_id}/worker_{worker.number}"
        identified = in_thread(
            lambda url: identify(url, timeout_sec=timeout_sec, api_key=api_key), worker.url
        )
        body = named.body(folder, profile_id)
        reply = _ask_with_retries(worker.url + START, body, timeout_sec, retries, api_key)
        return _started(worker, named, identified(), reply, profile_id, folder)

    return all_at_once(start, workers)


def stop_all(
    workers: Sequence[EngineWorker],
    *,
    timeout_sec: float = STOP_SEC,
    retries: int = 1,
    api_key: str | None = None,
) -> list[SwitchOutcome]:
    """Stop the profilers of all workers at the same time; SGLang answers when its traces are written.

    A worker whose profiler does not run, because it stopped by itself or never ran, succeeds as well: `idle`.
    """

    def stop(worker: EngineWorker) -> SwitchOutcome:
        reply = _ask_with_retries(worker.url + STOP, None, timeout_sec, retries, api_key)
        kind = ""
        if reply.status == 500:
            kind = identify(worker.url, timeout_sec=min(timeout_sec, _IDENTIFY_SEC), api_key=api_key).kind
        return _stopped(worker, reply, kind)

    return all_at_once(stop, workers)


def _ask_with_retries(url: str, body: Any, timeout_sec: float, retries: int, api_key: str | None) -> Reply:
    """Ask again while the server cannot be reached; a request that it may have received is not repeated."""
    while True:
        reply = ask("POST", url, body=body, timeout_sec=timeout_sec, api_key=api_key)
        if not reply.error or reply.sent or retries <= 0:
            return reply
        retries -= 1
        time.sleep(_RETRY_AFTER_SEC)


def _started(
    worker: EngineWorker,
    options: ProfileOptions,
    engine: EngineIdentity,
    reply: Reply,
    profile_id: str,
    folder: str,
) -> SwitchOutcome:
    notices = []
    if engine.kind == "vllm":
        folder, profile_id = "", ""  # it writes to the folder of its own settings
        notices.append("vLLM takes no options: it records what --profiler-config says, until it is stopped")
    else:
        unknown = options.unknown_to(engine.version)
        if unknown:
            notices.append(f"{engine.name} is too old for {', '.join(unknown)}: left out")
    words = "" if reply.ok else _why_not_started(reply, engine)
    return SwitchOutcome(
        number=worker.number,
        url=worker.url,
        ok=reply.ok,
        state="started" if reply.ok else "failed",
        engine=engine.name,
        words=words,
        profile_id=profile_id if reply.ok else "",
        folder=folder if reply.ok else "",
        notices=notices if reply.ok else [],
        sec=reply.sec,
        ranks=engine.ranks,
    )


def _why_not_started(reply: Reply, engine: EngineIdentity) -> str:
    if reply.status == 404:
        return f"it has no {START}: {VLLM_ADVICE}" if engine.kind != "sglang" else f"it has no {START}"
    if reply.status in (401, 403):
        return f"{reply.words}: give its admin key, --api-key"
    if reply.status == 500 and engine.kind == "sglang":
        return "HTTP 500: usually its profiler runs already; `profile stop` ends it, its log says more"
    if reply.error and reply.sent and not engine.reached:
        return f"{reply.error}: the process exists but does not answer; py-spy dump --pid shows what it does"
    return reply.words


def _stopped(worker: EngineWorker, reply: Reply, kind: str) -> SwitchOutcome:
    state, words = ("stopped", "") if reply.ok else ("failed", reply.words)
    if reply.status == 500 and kind == "vllm":
        words = f"{reply.words}; usually because its trace took too long to write: {RPC_ADVICE}"
    elif reply.status == 500:
        # SGLang answers 500 when no profiler runs; in all other cases of 500 it does not survive.
        state, words = "idle", "nothing was being recorded: it had stopped by itself, or was never started"
    elif reply.status == 404:
        words = f"it has no {STOP}: {VLLM_ADVICE}"
    elif reply.status in (401, 403):
        words = f"{reply.words}: give its admin key, --api-key"
    elif reply.error and reply.sent:
        words = _why_not_stopped(reply)
    return SwitchOutcome(worker.number, worker.url, state != "failed", state, "", words, sec=reply.sec)


def _why_not_stopped(reply: Reply) -> str:
    if "no answer" in reply.error:
        return (
            f"{reply.error}: it may still be writing its traces; give a longer --timeout; vLLM: {RPC_ADVICE}"
        )
    return f"{reply.error}; a full or missing disk below output_dir ends SGLang's scheduler: see its log"
