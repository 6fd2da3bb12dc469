"""A request to a server has one deadline in total, whatever the server does."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from sglang_instrument.cli.main import main
from sglang_instrument.profilers.http_client import ask
from sglang_instrument.profilers.workers import workers_at

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
_TIMEOUT_SEC = 4  # a busy machine may take a second or two to connect
#: Enough for a busy machine; without a deadline, the servers here would take 60 s.
_AT_MOST_SEC = 40.0


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
    """Send some bytes, and then a few every 50 ms, for up to a minute."""
    connection.recv(65536)
    connection.sendall(once)
    for _ in range(1200):
        connection.sendall(again)
        time.sleep(0.05)


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
}


@pytest.mark.parametrize("part", DRIPS)
def test_a_server_that_sends_byte_by_byte_is_given_up_in_time(part):
    with server(lambda connection: drip(connection, *DRIPS[part])) as url:
        begun = time.monotonic()
        reply = ask("GET", url, timeout_sec=_TIMEOUT_SEC)
        assert time.monotonic() - begun < _AT_MOST_SEC
    assert not reply.ok
    assert reply.sent
    assert reply.error == f"no answer within {_TIMEOUT_SEC} s" or "header" in reply.error, reply


def test_status_of_a_server_that_sends_byte_by_byte_ends_at_its_timeout(capsys):
    with server(lambda connection: drip(connection, HEAD, b"X: 1\r\n")) as url:
        begun = time.monotonic()
        assert main(["profile", "status", "--worker-url", url, "--timeout", str(_TIMEOUT_SEC)]) == 1
        assert time.monotonic() - begun < _AT_MOST_SEC
    assert f"no answer within {_TIMEOUT_SEC} s" in capsys.readouterr().out


def test_a_server_that_takes_no_request_is_given_up_in_time():
    def read_nothing(connection: socket.socket) -> None:
        time.sleep(60)

    with server(read_nothing) as url:
        begun = time.monotonic()
        reply = ask("POST", url, body="x" * 50_000_000, timeout_sec=_TIMEOUT_SEC)
        assert time.monotonic() - begun < _AT_MOST_SEC
    assert reply.error == f"no answer within {_TIMEOUT_SEC} s"


def test_a_name_that_nobody_resolves_in_time_is_given_up(monkeypatch):
    resolving = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: resolving.wait(60))
    begun = time.monotonic()
    reply = ask("GET", "http://no-such-host.invalid:1", timeout_sec=_TIMEOUT_SEC)
    resolving.set()
    assert time.monotonic() - begun < _AT_MOST_SEC
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
        reply = ask("GET", f"http://127.0.0.1:{address[1]}", timeout_sec=_TIMEOUT_SEC)
        assert time.monotonic() - begun < _AT_MOST_SEC
    finally:
        for one in (*waiting, full):
            one.close()
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


def test_a_server_that_never_ends_its_handshake_is_given_up_in_time():
    with server(lambda connection: drip(connection, b"\x16\x03\x03\x3f\xff", b"\x02")) as url:
        begun = time.monotonic()
        reply = ask("GET", url.replace("http:", "https:"), timeout_sec=_TIMEOUT_SEC)
        assert time.monotonic() - begun < _AT_MOST_SEC
    assert reply.error
    assert not reply.sent
