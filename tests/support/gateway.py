"""A small gateway before a server: it knows agents by their keys, and names their requests in a header."""

import threading
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

#: The setting `request_header` of the servers that tests share.
REQUEST_HEADER = "X-Rollout-Request"


class _Gateway(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "_Server"

    def do_POST(self) -> None:
        """Send the request on with the header of its agent; an unknown agent's gets none."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        key = self.headers.get("Authorization", "").removeprefix("Bearer ")
        headers = {"Content-Type": "application/json", **self.server.headers_of.get(key, {})}
        request = urllib.request.Request(self.server.target + self.path, body, headers)
        with urllib.request.urlopen(request, timeout=1200) as reply:
            answer = reply.read()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    target = ""
    headers_of: Mapping[str, Mapping[str, str]] = {}


@contextmanager
def gateway(target: str, headers_of: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """Yield the address of a gateway before the server `target`; `headers_of` has the headers by key."""
    server = _Server(("127.0.0.1", 0), _Gateway)
    server.target, server.headers_of = target, headers_of
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
