"""Stand in for Miles' background event loop."""

import asyncio
import threading


class AsyncLoopThread:
    """An event loop on its own thread."""

    def __init__(self):
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    def run(self, coro):
        """Run a coroutine in this loop, and wait for it."""
        return asyncio.run_coroutine_threadsafe(coro, self.loop).result()


async_loop = None


def run(coro):
    """Run a coroutine in the background."""
    global async_loop
    async_loop = async_loop or AsyncLoopThread()
    return async_loop.run(coro)
