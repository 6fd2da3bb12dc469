"""Drop samples with verl's own classes, without a trainer: a full queue, and a buffer that evicts groups.

dropping.py MODEL FOLDER MODE

MODE is not used. The environment switches the instrumentation on.
"""

import asyncio
from types import SimpleNamespace

import numpy
import torch

import sglang_instrument

STEP = 9
#: Groups: their step, their rewards, whether they failed. A group may span three steps, its own included.
GROUPS = {
    "old": (6, (1.0, 0.0), False),
    "flat": (8, (1.0, 1.0), False),
    "failed": (8, (), True),
    "good": (8, (1.0, 0.0), False),
    "spare": (9, (1.0, 0.0), False),
}
VERSION = 3  # of the weights that made the groups for the queue


class Store:
    """Answers as verl's TransferQueue does."""

    def __init__(self):
        self.items = {}
        for uid, (step, rewards, failed) in GROUPS.items():
            status = "failure" if failed else "finished"
            self.items[uid] = {"is_prompt": True, "status": status, "global_steps": step}
            for number, reward in enumerate(rewards):
                self.items[f"{uid}_{number}_0"] = {"reward": reward}

    def kv_list(self):
        return {"train": self.items}

    def kv_batch_get(self, keys, partition_id, select_fields):
        return {"rm_scores": [torch.tensor([self.items[key]["reward"]]) for key in keys]}

    def kv_clear(self, partition_id, keys):
        for key in keys:
            self.items.pop(key, None)


def sample_from_buffer():
    """Take one group from the V1 trainer's buffer, in a step of the trainer."""
    from verl.trainer.ppo.v1 import replay_buffer

    replay_buffer.tq = Store()
    buffer = replay_buffer.ReplayBufferAsync(
        "separate_async",
        None,
        3,
        "drop",
        None,
        poll_interval=0.01,
        refill_fn=print,
        filter_groups_metric="reward",
    )
    with sglang_instrument.bind(step=STEP, role="trainer"):
        batch, _ = buffer.sample(global_steps=STEP, partition_id="train", batch_size=1)
    assert batch.keys == ["good_0_0", "good_1_0"]


class Loops:
    """Answers as the manager of the agent loops does."""

    async def generate_sequences_single(self, batch):
        batch.non_tensor_batch["max_global_steps"] = numpy.array([VERSION] * len(batch), dtype=object)
        return batch


class Client:
    """Calls the queue's own methods, in this process."""

    def __init__(self, queue):
        self.put_sample, self.get_statistics = queue.put_sample, queue.get_statistics


async def fill_queue():
    """Let a rollouter put two groups of two into a queue that has room for one."""
    from verl.experimental.fully_async_policy.detach_utils import RolloutSample
    from verl.experimental.fully_async_policy.fully_async_rollouter import FullyAsyncRollouter
    from verl.experimental.fully_async_policy.message_queue import MessageQueue
    from verl.protocol import DataProto

    queue = MessageQueue.__ray_metadata__.modified_class(None, 1)
    rollouter = object.__new__(FullyAsyncRollouter.__ray_metadata__.modified_class)
    vars(rollouter).update(
        async_rollout_manager=Loops(),
        message_queue_client=Client(queue),
        active_tasks=set(),
        pending_queue=SimpleNamespace(qsize=int),
        **dict.fromkeys(("total_generated_samples", "_step_generated_samples", "dropped_stale_samples"), 0),
        **dict.fromkeys(("processed_sample_count", "staleness_samples", "max_required_samples"), 0),
        **dict.fromkeys(("required_samples", "staleness_threshold", "max_queue_size"), 1),
        max_concurrent_samples=1,
    )
    for name in ("first", "second"):
        batch = DataProto.from_dict(tensors={"input_ids": torch.zeros(2, 3)}, non_tensors={})
        await rollouter._process_single_sample_streaming(RolloutSample(batch, name, 0, {}))
    assert rollouter.dropped_stale_samples == 1


if __name__ == "__main__":
    sample_from_buffer()
    asyncio.run(fill_queue())
