"""Predict what would fail in a capture, for each worker and for the trainer that started it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sglang_instrument.errors import InstrumentError
from sglang_instrument.profilers.http_client import all_at_once
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
from sglang_instrument.regular_files import open_regular

#: What a trainer's log shows of a configured profiler: arguments parsed, passed on to the server, route
#: mounted.
_PARSED: Final = re.compile(
    r"profiler_config\W.*?(?:profiler['\"]?\s*[=:]\s*['\"](?:torch|cuda))", re.IGNORECASE
)
_FORWARDED: Final = re.compile(
    r"(?:Launching|vllm serve|api_server)[^\n]*--profiler-config|VLLM_TORCH_PROFILER_DIR\s*[=:]",
    re.IGNORECASE,
)
_MOUNTED: Final = re.compile(r"/start_profile")
_LOG_BYTES: Final = 64 * 2**20


@dataclass(frozen=True)
class CheckResult:
    """The result of one check; `ok` is None if it cannot be told."""

    number: int | None
    url: str
    what: str
    ok: bool | None
    words: str


def check_workers(
    workers: Sequence[EngineWorker],
    options: ProfileOptions,
    *,
    timeout_sec: float,
    api_key: str | None = None,
) -> list[CheckResult]:
    """Check all workers at the same time; start nothing."""

    def look(worker: EngineWorker) -> list[CheckResult]:
        engine = identify(worker.url, timeout_sec=timeout_sec, api_key=api_key, with_routes=True)
        return [
            CheckResult(worker.number, worker.url, what, ok, words)
            for what, ok, words in _of_worker(worker, engine, options)
        ]

    return [finding for findings in all_at_once(look, workers) for finding in findings]


def check_log(path: Path) -> list[CheckResult]:
    """Check in a trainer's log whether vLLM's profiler was configured, passed on to the server, and mounted.

    If one of these three is missing, `/start_profile` answers 404.

    Raises:
        InstrumentError: The log cannot be read.
    """
    try:
        with open_regular(path) as file:
            text = file.read(_LOG_BYTES).decode(errors="replace")
    except OSError as error:
        raise InstrumentError(f"{path}: {error.strerror}") from error
    checks = (
        ("arguments", _PARSED, "the trainer did not parse a profiler_config"),
        ("forwarding", _FORWARDED, "no command line of a server has --profiler-config"),
        ("routes", _MOUNTED, "no server printed the route /start_profile"),
    )
    findings = []
    for what, pattern, missing in checks:
        match = pattern.search(text)
        words = " ".join(match.group().split())[:80] if match else f"{missing}: {VLLM_ADVICE}"
        findings.append(CheckResult(None, str(path), what, match is not None, words))
    return findings


def _of_worker(
    worker: EngineWorker, engine: EngineIdentity, options: ProfileOptions
) -> list[tuple[str, bool | None, str]]:
    if not engine.reached:
        router = "; its router still lists it" if worker.healthy is not None else ""
        return [("reached", False, f"{engine.words}{router}")]
    findings: list[tuple[str, bool | None, str]] = [("reached", True, engine.name)]
    missing = [path for path in (START, STOP) if path not in (engine.routes or ())]
    if missing:
        advice = f": {VLLM_ADVICE}" if engine.kind != "sglang" else ""
        findings.append(("routes", False, f"without {' and '.join(missing)}{advice}"))
    else:
        findings.append(("routes", True, f"{START}, {STOP}"))
    if engine.kind == "vllm":
        findings.append(("arguments", None, "vLLM takes none: its --profiler-config says what to record"))
        findings.append(("timeout", None, RPC_ADVICE))
    else:
        unknown = options.unknown_to(engine.version)
        words = f"too old for {', '.join(unknown)}: would be left out" if unknown else "all known to it"
        findings.append(("arguments", not unknown if engine.version else None, words))
    return findings
