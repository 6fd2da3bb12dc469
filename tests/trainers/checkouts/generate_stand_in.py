"""Stand in for SGLang's `/generate` behind a router: answer at once with made-up tokens, and count them.

A prompt of at least n times `long` tokens, by default n hundred, is answered after n calls of
`/abort_request`, as an aborted request is.
"""

import json
import threading
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count

REPLY = "The answer is 5."
LIMIT_SEC = 300


@dataclass
class Counted:
    """What the server answered: tokens of prompts and replies by request, and how the requests ended."""

    prompts: dict[str, int] = field(default_factory=dict)
    replies: dict[str, int] = field(default_factory=dict)
    endings: Counter[str] = field(default_factory=Counter)


@dataclass
class Served:
    """A server at `port`; the text of its replies is `text`."""

    port: int
    text: str = REPLY
    long: int = 100
    counted: Counted = field(default_factory=Counted)
    numbers: count = field(default_factory=count)
    aborts: int = 0
    changed: threading.Condition = field(default_factory=threading.Condition)

    def abort(self):
        """Count an abort, and answer the prompts that waited for it."""
        with self.changed:
            self.aborts += 1
            self.changed.notify_all()

    def reply(self, payload):
        """Return the answer of `/generate`; replies have 4 to 7 tokens, an aborted one has 2."""
        number, prompt = next(self.numbers), payload["input_ids"]
        is_aborted = (awaited := len(prompt) // self.long) > 0
        with self.changed:
            self.changed.wait_for(lambda: self.aborts >= awaited, LIMIT_SEC)
        ending = "abort" if is_aborted else "stop"
        tokens = list(range(10, 12 if is_aborted else 14 + number % 4))
        rid = f"rid-{number}"
        self.counted.prompts[rid], self.counted.replies[rid] = len(prompt), len(tokens)
        self.counted.endings[ending] += 1
        return {
            "text": self.text,
            "output_ids": tokens,
            "meta_info": {
                "id": rid,
                "finish_reason": {"type": ending},
                "prompt_tokens": len(prompt),
                "completion_tokens": len(tokens),
                "cached_tokens": 1,
                "weight_version": "7",
                "e2e_latency": 0.001,
                "output_token_logprobs": [[-0.5, token, None] for token in tokens],
            },
        }


@contextmanager
def serve(text=REPLY, long=100):
    """Serve during a block; yield the server."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.served = Served(server.server_address[1], text, long)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.served
    finally:
        server.shutdown()
        server.server_close()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        payload = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or "{}")
        served = self.server.served
        if self.path == "/abort_request":
            served.abort()
        self._answer(served.reply(payload) if self.path == "/generate" else {"success": True})

    def do_GET(self):
        """Name the only worker, which is this server; it has no requests."""
        self._answer({"workers": [{"url": f"http://127.0.0.1:{self.server.served.port}"}], "loads": []})

    def _answer(self, answer):
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        with suppress(ConnectionError):  # the rollout ended without its answer
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *arguments):
        pass
