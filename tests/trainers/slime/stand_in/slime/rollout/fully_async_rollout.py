"""Stand in for slime's fully asynchronous rollout: a thread that never stops generating."""

import asyncio
import queue
import threading

from slime.rollout.sglang_rollout import GenerateState, generate_and_rm_group
from slime.utils.async_utils import run

_global_worker = None


class AsyncRolloutWorker:
    """Keep the maximum number of groups in flight, across steps."""

    def __init__(self, args, data_buffer, concurrency: int = 2):
        self.args, self.data_buffer, self.concurrency = args, data_buffer, concurrency
        self.running, self.output_queue = True, queue.Queue()
        self.worker_thread = threading.Thread(
            target=self._thread_main, name="fully-async-rollout", daemon=True
        )

    def _thread_main(self):
        asyncio.run(self._loop())

    async def _loop(self):
        state = GenerateState(self.args)
        while self.running:
            if self.output_queue.qsize() < self.concurrency:
                for group in self.data_buffer.get_samples(1):
                    params = state.sampling_params.copy()
                    made = await generate_and_rm_group(
                        self.args, group, sampling_params=params, evaluation=False
                    )
                    self.output_queue.put(made)
            await asyncio.sleep(0.001)


async def _generate_rollout_async(args, rollout_id: int, data_buffer):
    global _global_worker
    if _global_worker is None:
        _global_worker = AsyncRolloutWorker(args, data_buffer)
        _global_worker.worker_thread.start()
    worker, out = _global_worker, []
    while len(out) < args.rollout_batch_size:
        try:
            out.append(worker.output_queue.get_nowait())
        except queue.Empty:
            await asyncio.sleep(0.001)
    return out


def generate_rollout_fully_async(args, rollout_id, data_buffer, evaluation: bool = False):
    """Take the finished groups."""
    return run(_generate_rollout_async(args, rollout_id, data_buffer))
