"""Ask many servers over HTTP at once; with the standard library only, since training processes use it."""

from __future__ import annotations

import http.client
import io
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import SplitResult, urlsplit

_LONGEST_REPLY_BYTES: Final = 8 * 2**20
_CONNECT_SEC: Final = 5.0

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Reply:
    """A server's reply, or why there was none.

    Attributes:
        status: HTTP status; 0 if there was no reply.
        text: The decoded reply.
        error: Why there was no reply; else empty.
        sent: Whether the server may have received the request.
        sec: How long it took.
    """

    status: int = 0
    text: str = ""
    error: str = ""
    sent: bool = False
    sec: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether the server did what was asked."""
        return 200 <= self.status < 300

    def json(self) -> Any:
        """Return the reply as JSON; None if it is not JSON."""
        try:
            return json.loads(self.text)
        except (ValueError, RecursionError):
            return None

    @property
    def words(self) -> str:
        """What to tell a person about a failed request."""
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

    `timeout_sec` covers everything from name resolution to the last byte of the reply, so that a server that
    sends a byte now and then gets no more time than a silent one.

    No proxy is used, whatever the environment says: workers have addresses inside a cluster.
    """
    begun = time.monotonic()
    parts = urlsplit(url)
    headers = {"Accept": "application/json, text/plain, */*"}
    if api_key:
        headers["Authorization"] = f"Bearer {api_key}"
    data = None if body is None else json.dumps(body).encode()
    if data is not None:
        headers["Content-Type"] = "application/json"
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    sent = False
    try:
        with _connected(parts, begun + min(timeout_sec, _CONNECT_SEC)) as sock:
            connection = http.client.HTTPConnection(parts.hostname or "", parts.port)
            connection.sock = _DeadlineSocket(sock, begun + timeout_sec)
            sent = True
            connection.request(method, target, data, headers)
            response = connection.getresponse()
            text = response.read(_LONGEST_REPLY_BYTES + 1)
        if len(text) > _LONGEST_REPLY_BYTES:
            raise http.client.HTTPException(f"a reply longer than {_LONGEST_REPLY_BYTES >> 20} MiB")
        reply = text.decode(errors="replace")
        return Reply(response.status, reply, sent=True, sec=time.monotonic() - begun)
    except Exception as error:
        return Reply(error=_reason(error, sent, timeout_sec), sent=sent, sec=time.monotonic() - begun)


class _DeadlineSocket(io.RawIOBase):
    """A socket for http.client whose operations must all end by one deadline, `until`.

    A socket's own timeout would start again with each byte received.
    """

    def __init__(self, sock: socket.socket, until: float) -> None:
        self._sock, self._until = sock, until

    def sendall(self, data: bytes) -> None:
        self._sock.settimeout(_left_sec(self._until))
        self._sock.sendall(data)

    def makefile(self, _: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._sock.settimeout(_left_sec(self._until))
        return self._sock.recv_into(buffer)

    def close(self) -> None:
        """Leave the socket open: http.client closes it before the reply is read."""


def all_at_once(act: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Return `act` of each item, in their order; all calls run at the same time."""
    answers = [in_thread(act, item) for item in items]
    return [answer() for answer in answers]


def in_thread(act: Callable[[Item], Result], item: Item) -> Callable[..., Result]:
    """Run `act(one)` in a thread; return a function that waits for the result, or raises what `act` raised.

    That function takes the seconds to wait, after which it raises TimeoutError.

    The thread is a daemon and not part of a pool: a program waits for a pool's threads when it ends, so a
    hanging server would keep a training from ending.
    """
    results: list[Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(act(item))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="sglang-instrument-profile", daemon=True)
    thread.start()

    def wait(patience_sec: float | None = None) -> Result:
        thread.join(patience_sec)
        if errors:
            raise errors[0]
        if thread.is_alive():
            raise TimeoutError
        return results[0]

    return wait


def base_url(text: str) -> str:
    """Return an address as `http://host:port`, whatever part of it was written.

    Raises:
        ValueError: It has no host, or an invalid port.
    """
    parts = urlsplit(text.strip() if "://" in text else f"http://{text.strip()}")
    if parts.scheme not in ("http", "https") or not parts.hostname or not text.strip().isprintable():
        raise ValueError(f"{text!r} is no address; write http://host:port")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    port = f":{parts.port}" if parts.port is not None else ""  # .port raises ValueError if invalid
    return f"{parts.scheme}://{host}{port}{parts.path.rstrip('/')}"


def _connected(parts: SplitResult, until: float) -> socket.socket:
    """Return a connection to the first address of a host that accepts one."""
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    # In a thread: a resolver that does not answer has no timeout of its own.
    resolved = in_thread(lambda name: socket.getaddrinfo(name, port, type=socket.SOCK_STREAM), host)
    failed: OSError = OSError(f"{host} has no address")
    for family, kind, protocol, _, address in resolved(_left_sec(until)):
        try:
            sock = _connect(socket.socket(family, kind, protocol), address, until)
            return _encrypted(sock, host, until) if parts.scheme == "https" else sock
        except OSError as error:
            failed = error
    raise failed


def _connect(sock: socket.socket, address: Any, until: float) -> socket.socket:
    try:
        sock.settimeout(_left_sec(until))
        sock.connect(address)
    except BaseException:
        sock.close()
        raise
    return sock


def _encrypted(sock: socket.socket, host: str, until: float) -> socket.socket:
    with sock:  # wrap_socket() detaches it
        context = ssl.create_default_context()
        sock.settimeout(_left_sec(until))
        return context.wrap_socket(sock, server_hostname=host)


def _left_sec(until: float) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _reason(error: Exception, sent: bool, timeout_sec: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {timeout_sec:g} s" if sent else "no connection in time; is the host right?"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused: nothing listens there"
    if isinstance(error, (ConnectionError, http.client.RemoteDisconnected, http.client.IncompleteRead)):
        return "the server closed the connection before it answered: it crashed or was killed"
    return f"{type(error).__name__}: {error}"
