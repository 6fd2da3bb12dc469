"""Start and stop the profilers of many workers at once, and say of each what came of it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from sglang_instrument.profiling.engine import RPC_ADVICE, START, STOP, VLLM_ADVICE, Engine, identify
from sglang_instrument.profiling.options import ProfileOptions
from sglang_instrument.profiling.wire import Reply, all_at_once, ask, beside
from sglang_instrument.profiling.workers import Worker

START_SEC: Final = 60.0
STOP_SEC: Final = 30 * 60.0
_RETRY_AFTER_SEC: Final = 1.0
_IDENTIFY_SEC: Final = 30.0


@dataclass(frozen=True)
class Outcome:
    """What came of switching one worker's profiler.

    Attributes:
        number: Of the worker; url: its address.
        ok: Whether it did it.
        state: started, stopped, idle (stop: nothing ran, or it had stopped by itself) or failed.
        engine: And its version.
        words: What a person shall know, such as why it failed and what to do.
        profile_id: Of its capture; folder: where its files go, on its own machine. Empty for `stop`.
        notices: What it was asked for and cannot do.
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
        """Return what programs read."""
        return asdict(self)


def new_profile_id() -> str:
    """Return a name for a capture that nobody asked a name for: when it began, and four random letters."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def start_all(
    workers: Sequence[Worker],
    options: ProfileOptions,
    *,
    timeout_sec: float = START_SEC,
    retries: int = 1,
    api_key: str | None = None,
) -> list[Outcome]:
    """Start the profilers of all workers at the same time.

    SGLang answers when its schedulers have said that they record: the answer is the verification. What the
    server is, it is asked at the same moment; fields that it is too old for, it ignores, and they are named.

    Args:
        workers: To start.
        options: What to record.
        timeout_sec: Each worker's own.
        retries: How often one is asked again that was not reached; one that may have heard it, never.
        api_key: The servers' admin key, if they have one.
    """
    named = options if options.profile_id else options.with_(profile_id=new_profile_id())

    def start(worker: Worker) -> Outcome:
        profile_id = f"{named.profile_id}-worker_{worker.number}"
        # A folder each: ranks of two workers have the same names, and old servers know no profile_id.
        folder = f"{named.output_dir.rstrip('/')}/{named.profile_id}/worker_{worker.number}"
        said = beside(lambda url: identify(url, timeout_sec=timeout_sec, api_key=api_key), worker.url)
        body = named.body(folder, profile_id)
        reply = _patiently(worker.url + START, body, timeout_sec, retries, api_key)
        return _started(worker, named, said(), reply, profile_id, folder)

    return all_at_once(start, workers)


def stop_all(
    workers: Sequence[Worker],
    *,
    timeout_sec: float = STOP_SEC,
    retries: int = 1,
    api_key: str | None = None,
) -> list[Outcome]:
    """Stop the profilers of all workers at the same time; SGLang answers when its traces are written.

    A worker whose profiler does not run, because it stopped by itself or never ran, is well too: `idle`.
    """

    def stop(worker: Worker) -> Outcome:
        reply = _patiently(worker.url + STOP, None, timeout_sec, retries, api_key)
        kind = ""
        if reply.status == 500:
            kind = identify(worker.url, timeout_sec=min(timeout_sec, _IDENTIFY_SEC), api_key=api_key).kind
        return _stopped(worker, reply, kind)

    return all_at_once(stop, workers)


def _patiently(url: str, body: Any, timeout_sec: float, retries: int, api_key: str | None) -> Reply:
    """Ask again as long as the server was not reached; what it may have heard is not said twice."""
    while True:
        reply = ask("POST", url, body=body, timeout_sec=timeout_sec, api_key=api_key)
        if not reply.error or reply.sent or retries <= 0:
            return reply
        retries -= 1
        time.sleep(_RETRY_AFTER_SEC)


def _started(
    worker: Worker, options: ProfileOptions, engine: Engine, reply: Reply, profile_id: str, folder: str
) -> Outcome:
    notices = []
    if engine.kind == "vllm":
        folder, profile_id = "", ""  # it writes where its own settings say
        notices.append("vLLM takes no options: it records what --profiler-config says, until it is stopped")
    else:
        unknown = options.unknown_to(engine.version)
        if unknown:
            notices.append(f"{engine.name} is too old for {', '.join(unknown)}: left out")
    words = "" if reply.ok else _why_not_started(reply, engine)
    return Outcome(
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


def _why_not_started(reply: Reply, engine: Engine) -> str:
    if reply.status == 404:
        return f"it has no {START}: {VLLM_ADVICE}" if engine.kind != "sglang" else f"it has no {START}"
    if reply.status in (401, 403):
        return f"{reply.words}: give its admin key, --api-key"
    if reply.status == 500 and engine.kind == "sglang":
        return "HTTP 500: mostly because its profiler runs already; `profile stop` ends it, its log says more"
    if reply.error and reply.sent and not engine.reached:
        return (
            f"{reply.error}: the process is there but does nothing; py-spy dump --pid shows where it stands"
        )
    return reply.words


def _stopped(worker: Worker, reply: Reply, kind: str) -> Outcome:
    state, words = ("stopped", "") if reply.ok else ("failed", reply.words)
    if reply.status == 500 and kind == "vllm":
        words = f"{reply.words}; mostly because its trace took too long to write: {RPC_ADVICE}"
    elif reply.status == 500:
        # SGLang answers so when nothing runs, and in no other case in which it survives.
        state, words = "idle", "nothing was being recorded: it had stopped by itself, or was never started"
    elif reply.status == 404:
        words = f"it has no {STOP}: {VLLM_ADVICE}"
    elif reply.status in (401, 403):
        words = f"{reply.words}: give its admin key, --api-key"
    elif reply.error and reply.sent:
        words = _why_not_stopped(reply)
    return Outcome(worker.number, worker.url, state != "failed", state, "", words, sec=reply.sec)


def _why_not_stopped(reply: Reply) -> str:
    if "no answer" in reply.error:
        return f"{reply.error}: it may still write its traces, give more --timeout; vLLM: {RPC_ADVICE}"
    return f"{reply.error}; a full or missing disk below output_dir ends SGLang's scheduler: see its log"
