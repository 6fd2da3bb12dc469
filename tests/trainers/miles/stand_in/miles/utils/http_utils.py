"""Stand in for Miles' HTTP client: a server that repeats its prompt backwards."""

import asyncio
import itertools

_rids = itertools.count()


async def _post(client, url, payload, max_retries=60, action="post", headers=None):
    if url.endswith("/abort_request"):
        return {}
    await asyncio.sleep(0)
    tokens = payload["input_ids"][::-1]
    meta = {"id": f"rid-{next(_rids)}", "finish_reason": {"type": "stop"}, "weight_version": "7"}
    meta |= {"prompt_tokens": len(tokens), "completion_tokens": len(tokens), "cached_tokens": 0}
    return {"text": "secret reply", "meta_info": meta, "tokens": tokens}


async def post(url, payload, max_retries=60, action="post", headers=None):
    """Ask a server."""
    return await _post(None, url, payload, max_retries, action=action, headers=headers)


async def get(url):
    """Ask the router for its workers."""
    return {"workers": [{"url": "http://server"}]}
