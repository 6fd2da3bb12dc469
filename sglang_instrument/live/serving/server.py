"""Answer over HTTP: `/` is a page, `/metrics` OpenMetrics, `/api/now` JSON; no client can stop the others."""

import ipaddress
import socket
import socketserver
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from prometheus_client.exposition import choose_encoder

from sglang_instrument.analysis.answers.as_json import as_json
from sglang_instrument.errors import LogError
from sglang_instrument.live.follower import Follower
from sglang_instrument.live.serving.counters import Counters, instance
from sglang_instrument.live.serving.metrics import RunMetrics
from sglang_instrument.live.serving.page import POLICY, page_of
from sglang_instrument.live.state import Problem, Snapshot
from sglang_instrument.live.state import as_json as plain_values
from sglang_instrument.plain_text import plain, plain_json

_MOST_CLIENTS: Final = 32  # at once; others are turned away
_CLIENT_SEC: Final = 10.0  # then a client is cut off, however it keeps the connection busy
_SAME_SEC: Final = 0.5  # answers are made anew at most so often
_OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0"
_LOCALHOST: Final = "127.0.0.1"

Answer = tuple[str, bytes]  # its content type and itself


def address_of(text: str) -> tuple[str, int]:
    """Return host and port of "HOST:PORT", "[HOST]:PORT" or "PORT", which is one of this machine only.

    Raises:
        LogError: It is none of these.
    """
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if colon else _LOCALHOST
    if not host or not port.isascii() or not port.isdecimal() or int(port) > 65535:
        raise LogError(f"--listen: must be HOST:PORT, such as 127.0.0.1:9400, got {text!r}")
    return host, int(port)


class LiveServer(ThreadingHTTPServer):
    """Serves what a follower knows.

    Args:
        follower: The follower; clients only read its newest snapshot.
        host: The address to listen at.
        port: The port; 0 takes any that is free.

    Raises:
        LogError: Nothing can listen there.
    """

    daemon_threads = True
    allow_reuse_port = False  # a second one on the same port must fail
    request_queue_size = 128

    def __init__(self, follower: Follower, host: str, port: int) -> None:
        self._clients: dict[socket.socket, float] = {}
        self._clients_lock = threading.Lock()
        try:
            address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            self.address_family = address[0]
            super().__init__(address[4][:2], _Client)  # type: ignore[arg-type]  # of IPv6, host and port
        except OSError as error:
            raise LogError(f"cannot listen at {host}:{port}: {error.strerror or error}") from error
        self.host, self.port = str(self.server_address[0]), int(self.server_address[1])
        self.is_local = ipaddress.ip_address(self.host.partition("%")[0]).is_loopback
        self.counters = Counters(instance(self.host, self.port))
        self._metrics = RunMetrics(self.snapshot, self.counters)
        self._follower = follower
        self._answers: dict[tuple[str, str], tuple[float, bytes]] = {}
        self._answering = {path: threading.Lock() for path in ("/", "/metrics", "/api/now")}

    def server_bind(self) -> None:
        """Bind without asking a name server for our name, as HTTPServer does."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    @property
    def url(self) -> str:
        """Where a browser finds it."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}/"

    def snapshot(self) -> Snapshot:
        """Return what the follower knows, and what keeps counters from being saved."""
        snapshot, failed = self._follower.snapshot(), self.counters.failed
        if failed is None:
            return snapshot
        problem = Problem("follower", snapshot.at_us, None, None, plain(failed))
        return replace(snapshot, problems=(*snapshot.problems, problem))

    def metrics(self, accept: str) -> Answer:
        """Return the metrics: as OpenMetrics if that is asked for, else in Prometheus' older format."""
        encode, kind = choose_encoder(_OPENMETRICS if _OPENMETRICS.partition(";")[0] in accept else "")
        return kind, self._once("/metrics", kind, lambda: encode(self._metrics))

    def page(self, _: str) -> Answer:
        """Return the page."""
        kind = "text/html; charset=utf-8"
        return kind, self._once("/", kind, lambda: page_of(self.snapshot()).encode())

    def now(self, _: str) -> Answer:
        """Return the snapshot as JSON, as `watch --once --json` prints it."""
        kind = "application/json"
        return kind, self._once("/api/now", kind, lambda: _as_plain_json(self.snapshot()))

    def _once(self, path: str, kind: str, make: Callable[[], bytes]) -> bytes:
        """Return an answer made just now: many clients cost as much as one."""
        with self._answering[path]:
            made_at, body = self._answers.get((path, kind), (0.0, b""))
            if not made_at or time.monotonic() - made_at > _SAME_SEC:
                body = make()
                self._answers[path, kind] = time.monotonic(), body
            return body

    def process_request(self, request: Any, client_address: Any) -> None:
        """Give a client a thread, unless there are too many."""
        with self._clients_lock:
            is_full = len(self._clients) >= _MOST_CLIENTS
            if not is_full:
                self._clients[request] = time.monotonic()
        if is_full:
            self.shutdown_request(request)
        else:
            super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Forget a client."""
        with self._clients_lock:
            self._clients.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Cut off clients that are too slow; called twice a second."""
        with self._clients_lock:
            slow = [
                client for client, since in self._clients.items() if time.monotonic() - since > _CLIENT_SEC
            ]
            for client in slow:
                try:
                    client.shutdown(socket.SHUT_RDWR)  # its thread wakes up, and closes it
                except OSError:  # it has gone by itself
                    pass

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that vanish."""


def _as_plain_json(snapshot: Snapshot) -> bytes:
    """Return a snapshot as JSON that a terminal may show: curl prints it as it is."""
    return plain_json(as_json(plain_values(snapshot)).decode()).encode()


class _Client(BaseHTTPRequestHandler):
    """Answers one request of a client."""

    server: LiveServer
    timeout = _CLIENT_SEC
    server_version = "sglang-instrument"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer with a page, metrics or JSON."""
        makers = {"/": self.server.page, "/metrics": self.server.metrics, "/api/now": self.server.now}
        make = makers.get(self.path.partition("?")[0])
        if not self._is_expected():
            self.send_error(HTTPStatus.FORBIDDEN, explain="This address answers only by its own name.")
        elif make is None:
            self.send_error(HTTPStatus.NOT_FOUND, explain="There are /, /metrics and /api/now.")
        else:
            try:
                answer = make(self.headers.get("Accept", ""))
            except Exception as error:  # records may be odd: what is asked next may be known
                self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR, explain=plain(repr(error)))
                return
            self._send(*answer)

    def do_HEAD(self) -> None:
        """Answer as to GET, without the body."""
        self.do_GET()

    def _is_expected(self) -> bool:
        """Return whether no foreign web page asks, which has pointed its own name at this machine."""
        if not self.server.is_local:
            return True
        host = self.headers.get("Host", "localhost").rpartition("]")
        name = host[0].removeprefix("[") or host[2].partition(":")[0]
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name == "localhost"
        return True

    def _send(self, kind: str, body: bytes) -> None:
        self.send_response(HTTPStatus.OK)
        for name, value in {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Cache-Control": "no-store",
            "Content-Security-Policy": POLICY,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
        }.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the base class
        """Log no requests: Prometheus asks every few seconds."""
