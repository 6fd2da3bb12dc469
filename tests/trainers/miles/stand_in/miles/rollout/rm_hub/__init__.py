"""Stand in for Miles' rewards."""

import asyncio

from miles.utils.misc import load_function


async def remote_rm(args, sample):
    """Ask a reward server."""
    import aiohttp  # the Python of the tests with Ray has none

    payload = {"prompt": sample.prompt, "response": sample.response, "label": sample.label}
    async with aiohttp.ClientSession() as session, session.post(args.rm_url, json=payload) as resp:
        resp.raise_for_status()
        return await resp.json()


async def async_rm(args, sample, **kwargs):
    """Score one sample: by the user's function, else by a rule."""
    if args.custom_rm_path is not None:
        rm_function = load_function(args.custom_rm_path)
        return await rm_function(args, sample, **kwargs)
    if args.rm_type == "remote_rm":
        return await remote_rm(args, sample)
    return float(sample.response_length)


async def batched_async_rm(args, samples, inplace_set_reward_field=False, **kwargs):
    """Score a group."""
    if inplace_set_reward_field:
        rewards = await batched_async_rm(args, samples, **kwargs)
        for sample, reward in zip(samples, rewards, strict=True):
            sample.reward = reward
        return None
    if args.custom_rm_path is not None:
        rm_function = load_function(args.custom_rm_path)
        return await rm_function(args, samples, **kwargs)
    return await asyncio.gather(*[async_rm(args, sample, **kwargs) for sample in samples])
