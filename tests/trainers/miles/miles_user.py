"""Code of a Miles user, named by path: a data source, a reward, a tool, an agent."""

import asyncio

from miles.utils.types import Sample


class Prompts:
    """A data source: returns groups of samples, and takes back unfinished ones."""

    def __init__(self, args):
        self.args, self.groups, self.samples = args, 0, 0

    def get_samples(self, count):
        """Return the next groups."""
        return [self._group() for _ in range(count)]

    def add_samples(self, groups):
        """Take groups back."""

    def _group(self):
        group = []
        for _ in range(self.args.n_samples_per_prompt):
            group.append(Sample(self.groups, self.samples, prompt="secret prompt"))
            self.samples += 1
        self.groups += 1
        return group


tool_specs = [{"type": "function", "function": {"name": "calculator"}}]


async def tool(name, params):
    """Wait for a moment, as a tool does."""
    await asyncio.sleep(0)
    return "secret answer"


async def agent(base_url, prompt):
    """Work elsewhere."""
    await asyncio.sleep(0)


async def reward(args, sample, **kwargs):
    """Score one sample or several."""
    if isinstance(sample, list):
        return [{"score": 0.5} for _ in sample]
    return {"score": 0.5, "why": "secret reason"}
