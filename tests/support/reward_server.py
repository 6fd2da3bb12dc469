"""A reward server over HTTP, which scores one reply at a time, and may refuse the first calls."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer


@contextmanager
def reward_server(score: str = "0.25", refused: int = 0, sec: float = 0.0) -> Iterator[str]:
    """Yield the address of a server that answers each POST with `score`.

    Args:
        score: The reply, as JSON.
        refused: How many calls get a 503 first.
        sec: How long each call takes; the others wait in the queue of its socket.
    """
    left = [None] * refused

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            time.sleep(sec)
            self.send_response(503 if left else 200)
            if left:
                left.pop()
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(score)))
            self.end_headers()
            self.wfile.write(score.encode())

        def log_request(self, code: object = "-", size: object = "-") -> None:
            """Print nothing."""

    class Server(HTTPServer):
        request_queue_size = 128

    with Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/score"
        server.shutdown()
