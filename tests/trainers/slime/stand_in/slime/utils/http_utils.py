"""Stand in for slime's HTTP client: a server that repeats its prompt backwards, until it is told to abort."""

import asyncio
import itertools

ABORTED: list[bool] = []
_rids = itertools.count()


async def _post(client, url, payload, max_retries=60, headers=None):
    if url.endswith("/abort_request"):
        ABORTED.append(True)
        return {}
    tokens, before = payload["input_ids"][::-1], len(ABORTED)
    for _ in range(payload["sampling_params"].get("steps", 1)):
        await asyncio.sleep(0)  # no clock, so that two runs have the same iterations of the loop
        if len(ABORTED) > before:
            break
    reason = "abort" if len(ABORTED) > before else "stop"
    meta = {"id": f"rid-{next(_rids)}", "finish_reason": {"type": reason}, "weight_version": "v1"}
    meta |= {"prompt_tokens": len(tokens), "completion_tokens": len(tokens), "cached_tokens": 0}
    meta |= {"output_token_logprobs": [[-0.5, token] for token in tokens], "e2e_latency": 0.001}
    return {"text": "secret reply", "meta_info": meta}


async def post(url, payload, max_retries=60, headers=None):
    """Ask a server."""
    return await _post(None, url, payload, max_retries, headers=headers)


async def get(url):
    """Ask the router for its workers."""
    return {"workers": [{"url": "http://server"}]}
