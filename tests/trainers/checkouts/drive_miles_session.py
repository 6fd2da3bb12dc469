"""Run Miles' agentic generate over its session server, both real: DRIVER CHECKOUT MODEL VERSION.

The session server is a process of its own, as in Miles. Behind it a stand-in for SGLang counts. The last line
is JSON.
"""

import asyncio
import json
import multiprocessing
import sys
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from urllib.error import URLError
from urllib.request import urlopen

import stubs

CHECKOUT, MODEL, VERSION = sys.argv[1:4]
stubs.stand_in_for(CHECKOUT)

from miles.rollout.base_types import GenerateFnInput  # noqa: E402
from miles.rollout.generate_hub import agentic_tool_call  # noqa: E402
from miles.rollout.session.server import run_session_server  # noqa: E402
from miles.utils.http_utils import find_available_port, init_http_client  # noqa: E402
from miles.utils.types import Sample  # noqa: E402

CALLS, REPLY = 2, [21, 22, 23]


class Backend(BaseHTTPRequestHandler):
    """Answers as SGLang's chat endpoint does for a session server, always with the same tokens."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        rid = uuid.uuid4().hex
        self.server.rids.append(rid)
        meta = {
            "id": rid,
            "output_token_logprobs": [[-0.5, token, None] for token in REPLY],
            "completion_tokens": len(REPLY),
            "weight_version": "4",
        }
        message = {"role": "assistant", "content": "yes"}
        choice = {"index": 0, "message": message, "finish_reason": "stop", "meta_info": meta}
        body = json.dumps({"id": rid, "choices": [choice]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


async def agent(base_url, prompt, request_kwargs, metadata):
    """An agent of a team's: it knows an address."""
    import httpx

    messages = [{"role": "user", "content": prompt}]
    async with httpx.AsyncClient(timeout=600) as client:
        for _ in range(CALLS):
            body = {"model": "m", "messages": messages}
            reply = await client.post(f"{base_url}/v1/chat/completions", json=body)
            reply.raise_for_status()
            messages = [
                *messages,
                reply.json()["choices"][0]["message"],
                {"role": "user", "content": "and now"},
            ]


async def rollout(args):
    from sglang_instrument import bind, span

    init_http_client(args)

    async def one_sample(index):
        sample = Sample(index=index, prompt=f"say {index}", metadata={})
        asked = GenerateFnInput(SimpleNamespace(args=args), sample, {"max_new_tokens": 8}, False)
        with bind(request_id=f"sample {index}"), span("async_rollout_request_complete"):
            try:
                await agentic_tool_call.generate(asked)
            except RuntimeError as error:  # the made-up tokens may be refused where samples are made of them
                return str(error)[:200]

    with bind(step=1, worker=0), span("total_step_duration"):
        return await asyncio.gather(*map(one_sample, range(3)))


def main():
    import sglang_instrument

    sglang_instrument.install()
    backend = ThreadingHTTPServer(("127.0.0.1", 0), Backend)
    backend.rids = []
    threading.Thread(target=backend.serve_forever, daemon=True).start()
    port = find_available_port(20000)
    args = SimpleNamespace(
        hf_checkpoint=MODEL,
        use_session_server=VERSION,
        session_server_ip="127.0.0.1",
        session_server_port=port,
        session_server_ports=[port],
        custom_agent_function_path="drive_miles_session.agent",
        chat_template_path=None,
        max_seq_len=None,
        sglang_server_concurrency=8,
        rollout_num_gpus=1,
        eval_num_gpus=0,
        rollout_num_gpus_per_engine=1,
        use_distributed_post=False,
        session_sample_picker_path="miles.rollout.session.v2.picker_hub.drop_retries",  # the defaults
        session_sample_postprocessor_path="miles.rollout.session.v2.postprocessor_hub.default_postprocess",
        sglang_speculative_algorithm=None,
        save_debug_trajectory_data=None,
        use_rollout_routing_replay=False,
        use_rollout_indexer_replay=False,
    )
    address = f"http://127.0.0.1:{backend.server_address[1]}"
    server = multiprocessing.get_context("spawn").Process(
        target=run_session_server, args=(args, address), daemon=True
    )
    server.start()
    until = time.monotonic() + 600
    while True:
        try:
            with urlopen(f"http://127.0.0.1:{port}/health", timeout=60):
                break
        except (URLError, OSError):
            assert server.is_alive()
            assert time.monotonic() < until
            time.sleep(0.2)
    refused = asyncio.run(rollout(args))
    server.terminate()
    server.join(60)
    print(json.dumps({"rids": backend.rids, "refused": refused}))


if __name__ == "__main__":
    main()
