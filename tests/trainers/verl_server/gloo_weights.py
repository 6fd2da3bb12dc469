"""Send weights from a trainer to separate rollouts over gloo: a checkpoint engine for verl without a GPU.

verl's own engines (`nccl`, `nixl`, ...) need devices; its setting `custom_backend_module` loads this one.
"""

import asyncio
import io
from datetime import timedelta

import ray
import torch
from torch.distributed import PrefixStore, ProcessGroupGloo, TCPStore
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry

LIMIT = timedelta(minutes=10)


@CheckpointEngineRegistry.register("gloo")
class GlooCheckpointEngine(CheckpointEngine):
    """Rank 0 of the training broadcasts all weights in one piece; the driver passes its address on."""

    def __init__(self, bucket_size, is_master=False):
        self.is_master = is_master
        self.store = self.group = None
        self.groups = 0

    def prepare(self):
        if not self.is_master:
            return None
        host = ray.util.get_node_ip_address()
        self.store = self.store or TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=LIMIT)
        return host, self.store.port

    @classmethod
    def build_topology(cls, actor_wg_world_size, rollout_world_size, metadata):
        size = 1 + rollout_world_size
        senders = {"rank": [0] + [-1] * (actor_wg_world_size - 1)}
        receivers = {"rank": list(range(1, size))}
        for kwargs, count in ((senders, actor_wg_world_size), (receivers, rollout_world_size)):
            kwargs.update(world_size=[size] * count, address=[metadata[0]] * count)
        return senders, receivers

    def init_process_group(self, rank, world_size, address):
        if rank < 0:
            return
        self.store = self.store or TCPStore(*address, is_master=False, timeout=LIMIT)
        self.groups += 1
        self.group = ProcessGroupGloo(PrefixStore(str(self.groups), self.store), rank, world_size, LIMIT)

    def finalize(self):
        self.group = None

    async def send_weights(self, weights, global_steps=None):
        whole = {name: weight.detach().clone() for name, weight in weights}
        if self.group is None:
            return
        packed = io.BytesIO()
        torch.save(whole, packed)
        content = torch.frombuffer(packed.getbuffer(), dtype=torch.uint8).clone()
        await asyncio.to_thread(self._broadcast, torch.tensor([content.numel()]))
        await asyncio.to_thread(self._broadcast, content)

    async def receive_weights(self, global_steps=None):
        length = torch.zeros(1, dtype=torch.int64)
        await asyncio.to_thread(self._broadcast, length)
        content = torch.empty(int(length), dtype=torch.uint8)
        await asyncio.to_thread(self._broadcast, content)
        for name, weight in torch.load(io.BytesIO(content.numpy().tobytes())).items():
            yield name, weight

    def _broadcast(self, tensor):
        self.group.broadcast([tensor]).wait()
