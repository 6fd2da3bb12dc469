"""A request to a server has one deadline in total, whatever the server does."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from sglang_instrument.cli.main import main
from sglang_instrument.profilers.http_client import Reply, ask
from sglang_instrument.profilers.workers import workers_at

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
_TIMEOUT_SEC = 4  # a busy machine may take a second or two to connect
_SERVED_SEC = 600  # servers end after it: a request that outlasts its timeout so long had no deadline


@contextmanager
def server(serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """Serve each connection in its own thread, until the client disconnects."""
    listening = socket.create_server(("127.0.0.1", 0))
    over = threading.Event()

    def talk(connection: socket.socket) -> None:
        with connection:
            try:
                serve(connection)
            except OSError:  # the client has hung up
                pass

    def accept() -> None:
        while not over.is_set():
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=talk, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        over.set()
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()


def drip(connection: socket.socket, once: bytes, again: bytes) -> None:
    """Send some bytes, and then a few every 50 ms, until the client hangs up."""
    connection.recv(65536)
    connection.sendall(once)
    until = time.monotonic() + _SERVED_SEC
    while time.monotonic() < until:
        connection.sendall(again)
        time.sleep(0.05)


def read_nothing(connection: socket.socket) -> None:
    time.sleep(_SERVED_SEC)


def slow_request(name: str) -> tuple[Reply, float]:
    """Ask the server that is slow in this way; return the answer, and the seconds that it took."""
    serve = read_nothing if name == TAKES_NOTHING else lambda connection: drip(connection, *DRIPS[name])
    with server(serve) as url:
        begun = time.monotonic()
        if name == TAKES_NOTHING:
            reply = ask("POST", url, body="x" * 50_000_000, timeout_sec=_TIMEOUT_SEC)
        else:
            scheme = "https:" if name == HANDSHAKE else "http:"
            reply = ask("GET", url.replace("http:", scheme), timeout_sec=_TIMEOUT_SEC)
        return reply, time.monotonic() - begun


@pytest.fixture(scope="module")
def slow() -> dict[str, Reply]:
    """The answers of all servers that are slow; they are asked at once, as each takes its time."""
    names = [*DRIPS, TAKES_NOTHING]
    with ThreadPoolExecutor(len(names)) as pool:
        answers = dict(zip(names, pool.map(slow_request, names), strict=True))
    late = {name: sec for name, (_, sec) in answers.items() if sec >= _SERVED_SEC}
    assert not late, f"these requests ended only with their servers: {late}"
    return {name: reply for name, (reply, _) in answers.items()}


HANDSHAKE, TAKES_NOTHING = "a handshake of TLS", "no request"
#: What a server sends at once, and what it then sends again and again.
DRIPS = {
    "the status line": (b"HTTP/1.1 200 O", b"O"),
    "a header": (HEAD + b"X-Long: ", b"x"),
    "headers": (HEAD, b"X-More: 1\r\n"),
    "replies that go on": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "a body of known length": (HEAD + b"Content-Length: 100000\r\n\r\n", b"x"),
    "a body of any length": (HEAD + b"Connection: close\r\n\r\n", b"x"),
    "chunks": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
    "the length of a chunk": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"0"),
    "what follows the chunks": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"X-More: 1\r\n"),
    HANDSHAKE: (b"\x16\x03\x03\x3f\xff", b"\x02"),
}


@pytest.mark.parametrize("part", [name for name in DRIPS if name != HANDSHAKE])
def test_a_server_that_sends_byte_by_byte_is_given_up_in_time(slow, part):
    reply = slow[part]
    assert not reply.ok
    assert reply.sent
    assert reply.error == f"no answer within {_TIMEOUT_SEC} s" or "header" in reply.error, reply


def test_a_server_that_never_ends_its_handshake_is_given_up_in_time(slow):
    assert slow[HANDSHAKE].error
    assert not slow[HANDSHAKE].sent


def test_a_server_that_takes_no_request_is_given_up_in_time(slow):
    assert slow[TAKES_NOTHING].error == f"no answer within {_TIMEOUT_SEC} s"


def test_status_of_a_server_that_sends_byte_by_byte_ends_at_its_timeout(capsys):
    with server(lambda connection: drip(connection, HEAD, b"X: 1\r\n")) as url:
        begun = time.monotonic()
        assert main(["profile", "status", "--worker-url", url, "--timeout", str(_TIMEOUT_SEC)]) == 1
        assert time.monotonic() - begun < _SERVED_SEC
    assert f"no answer within {_TIMEOUT_SEC} s" in capsys.readouterr().out


def test_a_name_that_nobody_resolves_in_time_is_given_up(monkeypatch):
    resolving = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: resolving.wait(_SERVED_SEC))
    begun = time.monotonic()
    reply = ask("GET", "http://no-such-host.invalid:1", timeout_sec=0.5)
    resolving.set()
    assert time.monotonic() - begun < _SERVED_SEC
    assert reply.error == "no connection in time; is the host right?"
    assert not reply.sent


def test_a_port_that_does_not_take_connections_is_given_up_in_time():
    full = socket.socket()
    full.bind(("127.0.0.1", 0))
    full.listen(0)
    address = full.getsockname()
    waiting = []
    for _ in range(4):  # more connections than the kernel's backlog holds
        waiting.append(socket.socket())
        waiting[-1].setblocking(False)
        waiting[-1].connect_ex(address)
    try:
        begun = time.monotonic()
        reply = ask("GET", f"http://127.0.0.1:{address[1]}", timeout_sec=0.5)
        assert time.monotonic() - begun < _SERVED_SEC
    finally:
        for open_socket in (*waiting, full):
            open_socket.close()
    assert reply.error


def test_an_answer_that_never_ends_is_refused_once_it_is_too_long():
    def flood(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(HEAD + b"Connection: close\r\n\r\n")
        while True:
            connection.sendall(b"x" * 2**20)

    with server(flood) as url:
        reply = ask("GET", url, timeout_sec=60)
    assert not reply.ok
    assert "longer than 8 MiB" in reply.words


def test_redirects_are_not_followed():
    asked = []

    def elsewhere(connection: socket.socket) -> None:
        asked.append(connection.recv(65536))
        connection.sendall(b"HTTP/1.1 302 Found\r\nLocation: /again\r\nContent-Length: 0\r\n\r\n")

    with server(elsewhere) as url:
        reply = ask("GET", url)
    assert (reply.status, reply.ok, len(asked)) == (302, False, 1)


def test_an_answer_that_comes_in_time_is_whole_however_it_comes():
    def slowly(connection: socket.socket) -> None:
        connection.recv(65536)
        for byte in HEAD + b"Content-Length: 7\r\n\r\n" + b'{"a":1}':
            connection.sendall(bytes([byte]))

    with server(slowly) as url:
        reply = ask("GET", url, timeout_sec=60)
    assert reply.ok
    assert reply.json() == {"a": 1}


def test_json_nested_a_thousand_levels_is_refused():
    body = b"[" * 100_000

    def nested(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n%b" % (len(body), body))

    with server(nested) as url:
        reply = ask("GET", url)
    assert reply.ok
    assert reply.json() is None


def test_an_address_with_control_characters_is_refused():
    with pytest.raises(Exception, match="is no address"):
        workers_at(["http://127.0.0.1\x1b:80"])
