"""Stand-ins for servers with profilers: the routes of SGLang and vLLM, without an engine."""

from __future__ import annotations

import gzip
import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

TRACE = {"schemaVersion": 1, "displayTimeUnit": "ms", "traceEvents": [
    {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 10.0, "dur": 5.0, "args": {}}
]}  # fmt: skip


@dataclass
class StandIn:
    """The behaviour of a stand-in, and its requests: `asked` has (method, path, body) of each."""

    kind: str = "sglang"
    version: str = "0.5.21"
    configured: bool = True  # vLLM: started with --profiler-config
    hangs_on: tuple[str, ...] = ()
    fails_on: tuple[str, ...] = ()
    fails_with: str = "Internal Server Error"
    writes: bool = True
    dies_after: str = ""  # while it serves a request: after it has written the trace of this stage
    requests: int = 0  # running requests, as /v1/loads reports
    delay_sec: float = 0.0
    url: str = ""
    recording: dict[str, Any] | None = None
    asked: list[tuple[str, str, Any]] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)
    is_dead: bool = False
    workers: list[str] = field(default_factory=list)  # of a router: their addresses
    keys: list[str | None] = field(default_factory=list)  # with which it was asked

    def paths(self, method: str = "POST") -> list[str]:
        return [path for asked, path, _ in self.asked if asked == method]

    def body_of(self, path: str) -> Any:
        return next(body for _, asked, body in self.asked if asked == path)

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        self.asked.append((method, path, body))
        if path in self.hangs_on:
            self.over.wait(120)
        if self.delay_sec:
            self.over.wait(self.delay_sec)
        if path in self.fails_on:
            return 500, self.fails_with
        return getattr(self, f"_{self.kind}")(method, path, body)

    def _sglang(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        if path in ("/start_profile", "/stop_profile"):
            if method not in ("GET", "POST"):
                return 405, {"detail": "Method Not Allowed"}
            return self._start(body or {}) if path == "/start_profile" else self._stop()
        if path in ("/server_info", "/get_server_info"):
            return 200, {
                "version": self.version,
                "tp_size": 1,
                "model_path": "stand-in",
                "internal_states": [],
            }
        if path == "/v1/loads":
            return 200, {"loads": [{"num_running_reqs": self.requests, "num_waiting_reqs": 0}]}
        if path in ("/health", "/get_model_info", "/model_info"):
            return 200, {"model_path": "stand-in", "is_generation": True}
        if path == "/generate" and self.recording is not None and self.recording.get("num_steps"):
            self._stop()
            self.is_dead = bool(self.dies_after)
        return (200, {"text": "."}) if path == "/generate" else (404, {"detail": "Not Found"})

    def _start(self, body: dict[str, Any]) -> tuple[int, Any]:
        self.recording = body
        return 200, "Start profiling.\n"

    def _stop(self) -> tuple[int, Any]:
        if self.recording is None:
            return 500, "Internal Server Error"  # the answer of SGLang: "Profiling is not in progress"
        body, self.recording = self.recording, None
        if self.writes:
            folder = Path(body["output_dir"])
            folder.mkdir(parents=True, exist_ok=True)
            packed = gzip.compress(json.dumps(TRACE).encode())
            stage = self.dies_after and f"-{self.dies_after}"
            (folder / f"{body['profile_id']}-TP-0{stage}.trace.json.gz").write_bytes(packed)
        return 200, "Stop profiling. This will take some time.\n"

    def _router(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        # As routers from 0.2.0 on; what else a router is asked, it passes on.
        rows = [{"id": url, "url": url, "is_healthy": True} for url in self.workers]
        return (200, {"workers": rows}) if path == "/workers" else (404, {"detail": "Not Found"})

    def _vllm(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        # vllm/entrypoints/serve/profile/api_router.py: the two routes are there only with a profiler config.
        if path in ("/start_profile", "/stop_profile"):
            if not self.configured:
                return 404, {"detail": "Not Found"}
            return (200, "") if method == "POST" else (405, {"detail": "Method Not Allowed"})
        if path == "/version":
            return 200, {"version": self.version}
        if path == "/v1/models":
            return 200, {"data": [{"id": "stand-in"}]}
        if path == "/v1/completions":
            return 200, {"choices": [{"text": "."}]}
        return (200, "") if path == "/health" else (404, {"detail": "Not Found"})


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # some tests disconnect on purpose


@contextmanager
def served(*stand_ins: StandIn) -> Any:
    """Serve stand-ins, each at its own port, for a block."""
    servers = []
    for stand_in in stand_ins:
        server = _Server(("127.0.0.1", 0), _handler(stand_in))
        stand_in.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        servers.append(server)
    try:
        yield stand_ins
    finally:
        for stand_in, server in zip(stand_ins, servers, strict=True):
            stand_in.over.set()
            server.shutdown()
            server.server_close()


def _handler(stand_in: StandIn) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            stand_in.keys.append(self.headers.get("Authorization"))
            status, answer = (0, "") if stand_in.is_dead else stand_in.answer(self.command, self.path, body)
            if stand_in.is_dead:
                self.close_connection = True
                self.connection.close()
                return
            data = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_HEAD = _serve  # noqa: N815 - http.server's names

        def log_message(self, *_: Any) -> None:
            pass

    return Handler
