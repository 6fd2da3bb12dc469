"""Code of a slime user, named by path: generate and reward functions, filters, hooks."""

import asyncio
from types import SimpleNamespace

from slime.rollout import sample_hooks
from slime.utils.http_utils import post
from slime.utils.types import Sample

from sglang_instrument import instrument

BEGUN: set[int] = set()  # groups of the fully asynchronous rollout


class Prompts:
    """A data source: returns groups of samples, and takes back unfinished ones."""

    def __init__(self, args):
        self.args, self.groups, self.samples, self.back = args, 0, 0, []

    def get_samples(self, count):
        """Return the next groups."""
        return [self.back.pop(0) if self.back else self._group() for _ in range(count)]

    def add_samples(self, groups):
        """Take groups back."""
        self.back += groups

    def _group(self):
        group = []
        for _ in range(self.args.n_samples_per_prompt):
            slow = self.groups in self.args.slow_groups
            sample = Sample(self.groups, self.samples, prompt="secret prompt", metadata={"slow": slow})
            group.append(sample)
            self.samples += 1
        self.groups += 1
        return group


@instrument("tool_execution", fields={"tool": "name"})
async def use_tool(name):
    """Wait for a moment, as a tool does."""
    await asyncio.sleep(0)


async def generate(args, sample, sampling_params, evaluation=False):
    """Ask three times, with a tool between the replies."""
    for turn in range(3):
        payload = {"input_ids": [1, 2, 3], "sampling_params": sampling_params}
        output = await post("http://router/generate", payload)
        sample.append_response_tokens(
            args, tokens=[1, 2, 3], meta_info=output["meta_info"], text=output["text"]
        )
        if turn < 2:
            await use_tool("calculator")
    return sample


async def wait_for_next_step(args, sample, sampling_params):
    """Generate the second group for so long that the next step begins meanwhile."""
    BEGUN.add(sample.group_index)
    if sample.group_index == 1:
        while sample_hooks._current_rollout_id == 0:
            await asyncio.sleep(0.001)
    return await generate(args, sample, sampling_params)


async def fan_out(args, sample, sampling_params):
    """Split one sample into two training samples."""
    first = await generate(args, sample, sampling_params)
    return [first, await generate(args, Sample(sample.group_index, sample.index), sampling_params)]


async def reward(args, samples, **kwargs):
    """Score one sample or several; rewards are dicts that contain texts."""
    if isinstance(samples, list):
        return [await reward(args, sample) for sample in samples]
    return {"score": 0.5, "right": True, "reply": samples.response}


async def failing_reward(args, sample, **kwargs):
    """Fail."""
    raise ValueError("secret reason")


def keep(args, group):
    """Drop the first group."""
    return SimpleNamespace(keep=group[0].group_index > 0, reason=None if group[0].group_index else "first")


def look_at(args, groups, source=None):
    """Filter nothing."""


def hook(args, sample, evaluation, rollout_id):
    """Change nothing."""
