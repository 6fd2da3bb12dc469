"""A port that was chosen for a server is the server's, however late it begins to listen."""

import asyncio
import socket
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from sglang_instrument import free_ports
from sglang_instrument.errors import InstrumentError
from sglang_instrument.free_ports import free_port

# The kernel tells whether a port is taken: a few of them make two choices meet, if they can.
MANY = 40
CHOOSING = f"""
import sys
from sglang_instrument import free_ports
free_ports._PORTS = range(31_000, 31_000 + {3 * MANY})
print(*(free_ports.free_port() for _ in range({MANY})), flush=True)
sys.stdin.read()
"""


def test_processes_that_choose_at_once_never_choose_the_same_port():
    choosing = [
        subprocess.Popen(
            [sys.executable, "-c", CHOOSING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    try:
        chosen = [port for process in choosing for port in process.stdout.readline().split()]
    finally:
        for process in choosing:
            process.communicate("")
    assert len(chosen) == 2 * MANY == len(set(chosen))


def test_a_server_listens_at_its_port_and_nobody_does_before():
    port = free_port()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
    for _ in range(2):  # and again, after it ended
        with HTTPServer(("127.0.0.1", port), BaseHTTPRequestHandler):
            socket.create_connection(("127.0.0.1", port)).close()


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_server_of_a_loop_listens_at_its_port(host):
    async def listen():
        async with await asyncio.start_server(lambda *_: None, host, free_port()) as server:
            return server.is_serving()

    assert asyncio.run(listen())


def test_no_port_is_free(monkeypatch):
    monkeypatch.setattr(free_ports, "_PORTS", [free_port()])
    with pytest.raises(InstrumentError, match="no port is free"):
        free_port()
