"""Ask servers over HTTP, many at once; the standard library alone, for training processes do it too."""

from __future__ import annotations

import http.client
import json
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

_LONGEST_REPLY_BYTES: Final = 8 * 2**20
_CONNECT_SEC: Final = 5.0

One = TypeVar("One")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Reply:
    """What a server said, or why it said nothing.

    Attributes:
        status: Of HTTP; 0 if there was no reply.
        text: Of the reply, decoded.
        error: Why there was no reply, in words; else empty.
        sent: Whether the server may have taken the request.
        sec: How long it took.
    """

    status: int = 0
    text: str = ""
    error: str = ""
    sent: bool = False
    sec: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether the server did what it was asked."""
        return 200 <= self.status < 300

    def json(self) -> Any:
        """Return the reply as JSON; None if it is none."""
        try:
            return json.loads(self.text)
        except ValueError:
            return None

    @property
    def words(self) -> str:
        """What to tell a person of a reply that is not ok."""
        if self.error:
            return self.error
        line = " ".join(self.text.split())[:160]
        return f"HTTP {self.status}{f': {line}' if line else ''}"


def ask(
    method: str,
    url: str,
    *,
    body: Any = None,
    timeout_sec: float = 10.0,
    api_key: str | None = None,
) -> Reply:
    """Send one request and wait for the whole reply; never raise for what a server or a network does.

    No proxy is used, whatever the environment says: workers have addresses inside of a cluster.
    """
    begun = time.monotonic()
    parts = urlsplit(url)
    headers = {"Accept": "application/json, text/plain, */*"}
    if api_key:
        headers["Authorization"] = f"Bearer {api_key}"
    data = None if body is None else json.dumps(body).encode()
    if data is not None:
        headers["Content-Type"] = "application/json"
    sent = False
    connection: http.client.HTTPConnection | None = None
    try:
        connection = _connection(parts.scheme, parts.hostname or "", parts.port, timeout_sec)
        connection.connect()
        if connection.sock is not None:
            connection.sock.settimeout(timeout_sec)
        sent = True
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request(method, target, data, headers)
        response = connection.getresponse()
        text = response.read(_LONGEST_REPLY_BYTES).decode(errors="replace")
        return Reply(response.status, text, sent=True, sec=time.monotonic() - begun)
    except Exception as error:
        return Reply(error=_reason(error, sent, timeout_sec), sent=sent, sec=time.monotonic() - begun)
    finally:
        if connection is not None:
            connection.close()


def all_at_once(act: Callable[[One], Result], ones: Sequence[One]) -> list[Result]:
    """Return `act` of each, in their order; all run at the same time."""
    answers = [beside(act, one) for one in ones]
    return [answer() for answer in answers]


def beside(act: Callable[[One], Result], one: One) -> Callable[[], Result]:
    """Run `act(one)` in a thread, and return what waits for its result, or raises what it raised.

    The thread is a daemon, no pool's: those are waited for when a program ends, and a server that hangs would
    keep a training from ending.
    """
    results: list[Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(act(one))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="sglang-instrument-profile", daemon=True)
    thread.start()

    def wait() -> Result:
        thread.join()
        if errors:
            raise errors[0]
        return results[0]

    return wait


def base_url(text: str) -> str:
    """Return an address as `http://host:port`, whatever of it was written.

    Raises:
        ValueError: It has no host, or a port that is none.
    """
    parts = urlsplit(text.strip() if "://" in text else f"http://{text.strip()}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{text!r} is no address; write http://host:port")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    port = f":{parts.port}" if parts.port is not None else ""  # .port raises ValueError for a bad one
    return f"{parts.scheme}://{host}{port}{parts.path.rstrip('/')}"


def _connection(scheme: str, host: str, port: int | None, timeout_sec: float) -> http.client.HTTPConnection:
    patience = min(timeout_sec, _CONNECT_SEC)
    if scheme == "https":
        return http.client.HTTPSConnection(host, port, timeout=patience, context=ssl.create_default_context())
    return http.client.HTTPConnection(host, port, timeout=patience)


def _reason(error: Exception, sent: bool, timeout_sec: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {timeout_sec:g} s" if sent else "no connection in time; is the host right?"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused: nothing listens there"
    if isinstance(error, (ConnectionError, http.client.RemoteDisconnected, http.client.IncompleteRead)):
        return "the server hung up before it answered: it died, or was killed"
    return f"{type(error).__name__}: {error}"
