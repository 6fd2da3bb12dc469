"""Stand in for a server of SGLang: replies of the asked lengths, each token in its time, some at once.

    python stand_in_server.py --port N [--max-running-requests N] [--token-sec S] [--busy N]

It takes what the twin asks, and nothing else. The first `--busy` calls are refused by 503. `GET /counts`
tells what it counted.
"""

import argparse
import asyncio
import gc
import resource
import time
from collections import Counter

import orjson
from aiohttp import web

CONTEXT = 100_000


class Served:
    def __init__(self, options):
        self.options, self.counts, self.late = options, Counter(), []
        self.places = asyncio.Semaphore(options.max_running_requests)

    async def generate(self, request):
        body = orjson.loads(await request.read())
        if self.counts["refused"] < self.options.busy:
            self.counts["refused"] += 1
            return web.Response(status=503, headers={"Retry-After": "0"})
        prompt, tokens = len(body["input_ids"]), body["sampling_params"]["max_new_tokens"]
        arrived = time.monotonic()
        self.counts["open"] += 1
        self.counts["most_open"] = max(self.counts["most_open"], self.counts["open"])
        try:
            async with self.places:
                queued = time.monotonic() - arrived
                await asyncio.sleep(tokens * self.options.token_sec)
        finally:
            self.counts["open"] -= 1
        self.counts["calls"] += 1
        self.counts["prompt_tokens"] += prompt
        self.counts["generated_tokens"] += tokens
        meta = {"id": body["rid"], "prompt_tokens": prompt, "completion_tokens": tokens, "cached_tokens": 0}
        meta |= {"finish_reason": {"type": "length"}, "queue_time": queued}
        reply = {"output_ids": [11] * tokens, "meta_info": meta}
        return web.Response(body=orjson.dumps(reply), content_type="application/json")

    async def answer(self, request):
        """Answer the other paths."""
        replies = {
            "/v1/models": {"data": [{"max_model_len": CONTEXT}]},
            "/get_model_info": {"model_path": "nowhere"},
            "/counts": {**self.counts, "cpu_sec": sum(resource.getrusage(resource.RUSAGE_SELF)[:2])},
        }
        if request.path == "/abort_request":
            self.counts["aborts"] += 1
        return web.json_response(replies.get(request.path, {}))


async def served(options):
    app, server = web.Application(client_max_size=1 << 26), Served(options)
    app.add_routes([web.post("/generate", server.generate), web.route("*", "/{path:.*}", server.answer)])
    return app


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--max-running-requests", type=int, default=100_000)
    parser.add_argument("--token-sec", type=float, default=0.001)
    parser.add_argument("--device")
    parser.add_argument("--busy", type=int, default=0)
    asked = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 20_000), hard))
    gc.freeze()
    gc.disable()
    web.run_app(
        served(asked), host=asked.host, port=asked.port, print=None, backlog=8192, handler_cancellation=True
    )
