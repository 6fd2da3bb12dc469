"""Stand in for slime's abort of running requests on servers."""

import asyncio

from slime.utils.http_utils import post


async def abort_servers_until_idle(urls):
    """Tell each server."""
    await asyncio.gather(*(post(f"{url}/abort_request", {"abort_all": True}) for url in urls))
