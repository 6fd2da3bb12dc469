"""Find the workers to profile: behind a router, by address, in a trainer's log, in a run's logs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from sglang_instrument.errors import InstrumentError
from sglang_instrument.profilers.http_client import Reply, ask, base_url
from sglang_instrument.profilers.trainers import addresses_in
from sglang_instrument.regular_files import open_regular, read_regular

_ANSI: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_LOG_BYTES: Final = 64 * 2**20  # from its beginning, where the addresses are


@dataclass(frozen=True)
class EngineWorker:
    """An engine's server.

    Attributes:
        number: Its place in the list, from 0.
        url: http://host:port
        healthy: What the router reports; None if unknown.
    """

    number: int
    url: str
    healthy: bool | None = None


class WorkersError(InstrumentError):
    """No worker could be found."""


def workers_behind(
    routers: Sequence[str], *, timeout_sec: float = 10.0, api_key: str | None = None
) -> list[EngineWorker]:
    """Return the workers of one or more routers, in their order.

    Raises:
        WorkersError: A router does not answer, is not a router, or has no workers.
    """
    listed: list[tuple[str, bool | None]] = []
    for router in routers:
        listed += _listed(_address(router, "router"), timeout_sec, api_key)
    return _numbered(listed)


def workers_at(addresses: Iterable[str]) -> list[EngineWorker]:
    """Return the workers at these addresses.

    Raises:
        WorkersError: One is not an address.
    """
    return _numbered((_address(address, "worker"), None) for address in addresses)


def same_address(text: str) -> str:
    """Return an address in the form in which two that are the same are equal; what is no address as it is."""
    try:
        return base_url(text).lower()
    except ValueError:
        return text


def addresses_in_log(path: str | Path) -> tuple[list[str], list[str]]:
    """Return (routers, workers) that a trainer's log names; only the last one of several routers.

    Raises:
        WorkersError: The log cannot be read, or names neither.
    """
    try:
        with open_regular(path) as log:
            text = _ANSI.sub("", log.read(_LOG_BYTES).decode(errors="replace"))
    except OSError as error:
        raise WorkersError(f"{path}: {error.strerror}") from error
    routers, servers = addresses_in(text)
    if not routers and not servers:
        raise WorkersError(
            f"{path}: no line names a router or a server ('Router launched at HOST:PORT'); "
            "give --router-url or --worker-url"
        )
    return routers, servers


def addresses_in_run(folder: str | Path) -> tuple[list[str], list[str]]:
    """Return (routers, workers) from the command lines and profiles of a run's processes.

    Raises:
        WorkersError: The folder is not a run, or its processes name none.
    """
    folder = Path(folder)
    files = sorted(folder.glob("profiles/*.json")) + sorted(folder.glob("processes/*.json"))
    if not files:
        raise WorkersError(f"{folder}: not a run: it has no processes/ folder")
    routers: list[str] = []
    engines: list[str] = []
    for path in files:
        try:
            facts = json.loads(read_regular(path))
        except (OSError, ValueError, RecursionError):
            continue
        if isinstance(facts, dict):
            engines += [facts["worker_url"]] if isinstance(facts.get("worker_url"), str) else []
            router, engine = _of_command(facts)
            routers += router
            engines += engine
    if not routers and not engines:
        raise WorkersError(
            f"{folder}: no process of this run says where its servers are; give --router-url or --worker-url"
        )
    return list(dict.fromkeys(routers)), list(dict.fromkeys(engines))


def _of_command(facts: dict[str, Any]) -> tuple[list[str], list[str]]:
    command = facts.get("command")
    words = [str(word) for word in command] if isinstance(command, list) else []
    if not any("launch_server" in word or word == "serve" for word in words):
        return [], []
    given = {word: value for word, value in pairwise(words) if word.startswith("--")}
    host = given.get("--host", "")
    host = str(facts.get("host", "127.0.0.1")) if host in ("", "0.0.0.0", "::") else host  # noqa: S104
    return [], [f"{host}:{given.get('--port', '30000')}"]


def _listed(router: str, timeout_sec: float, api_key: str | None) -> list[tuple[str, bool | None]]:
    new = ask("GET", f"{router}/workers", timeout_sec=timeout_sec, api_key=api_key)
    rows = _rows(new.json()) if new.ok else None
    old: Reply | None = None
    if rows is None and not new.error:
        old = ask("GET", f"{router}/list_workers", timeout_sec=timeout_sec, api_key=api_key)
        answer = old.json() if old.ok else None
        urls = answer.get("urls") if isinstance(answer, dict) else None
        rows = [(str(url), None) for url in urls] if isinstance(urls, list) else None
    if rows is None:
        if new.error:
            raise WorkersError(
                f"router {router}: {new.error}; routers take a new port in each job: read its log"
            )
        raise WorkersError(
            f"router {router}: neither /workers ({new.words}) nor /list_workers "
            f"({old.words if old else 'not asked'}) lists workers; is it a server? then --worker-url {router}"
        )
    if not rows:
        raise WorkersError(f"router {router}: it has no workers yet; wait until the engines are registered")
    return rows


def _rows(answer: Any) -> list[tuple[str, bool | None]] | None:
    workers = answer.get("workers") if isinstance(answer, dict) else None
    if not isinstance(workers, list):
        return None
    rows: list[tuple[str, bool | None]] = []
    for worker in workers:
        if isinstance(worker, str):
            rows.append((worker, None))
        elif isinstance(worker, dict) and isinstance(worker.get("url"), str):
            healthy = worker.get("is_healthy")
            rows.append((worker["url"], healthy if isinstance(healthy, bool) else None))
    return rows


def _address(text: str, what: str) -> str:
    try:
        return base_url(text)
    except ValueError as error:
        raise WorkersError(f"{what}: {error}") from None


def _numbered(listed: Iterable[tuple[str, bool | None]]) -> list[EngineWorker]:
    # A data-parallel server is listed once per rank, as url@rank; one request serves all its ranks.
    urls: dict[str, bool | None] = {}
    for url, healthy in listed:
        urls.setdefault(_address(url.partition("@")[0], "worker"), healthy)
    return [EngineWorker(number, url, healthy) for number, (url, healthy) in enumerate(urls.items())]
