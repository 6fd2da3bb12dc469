"""Stand in for slime's rewards."""

import asyncio

from slime.utils.misc import load_function


async def remote_rm(args, sample, max_retries=10):
    """Ask a reward server, again where it fails."""
    import aiohttp  # the Python of the tests with Ray has none

    payload = {"prompt": sample.prompt, "response": sample.response, "label": sample.label}
    async with aiohttp.ClientSession() as session:  # slime shares one
        for attempt in range(max_retries):
            try:
                async with session.post(args.rm_url, json=payload) as resp:
                    resp.raise_for_status()
                    return await resp.json()
            except aiohttp.ClientError:
                if attempt + 1 >= max_retries:
                    raise
    return None


async def async_rm(args, sample, **kwargs):
    """Score one sample: by the user's function, else by a rule."""
    if sample.custom_rm_path:
        return await load_function(sample.custom_rm_path)(args, sample, **kwargs)
    if args.custom_rm_path is not None:
        rm_function = load_function(args.custom_rm_path)
        return await rm_function(args, sample, **kwargs)
    if args.rm_type == "remote_rm":
        return await remote_rm(args, sample)
    return float(sample.response_length)


async def batched_async_rm(args, samples, **kwargs):
    """Score a group."""
    if args.custom_rm_path is not None:
        rm_function = load_function(args.custom_rm_path)
        return await rm_function(args, samples, **kwargs)
    return await asyncio.gather(*[async_rm(args, sample, **kwargs) for sample in samples])
