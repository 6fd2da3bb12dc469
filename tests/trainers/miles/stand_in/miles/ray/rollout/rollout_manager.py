"""Stand in for Miles' rollout actor."""

import asyncio
from contextlib import contextmanager

from miles.rollout.base_types import (
    RolloutFnConstructorInput,
    RolloutFnEvalInput,
    RolloutFnTrainInput,
    call_rollout_fn,
)
from miles.rollout.inference_rollout.compatibility import call_rollout_function, load_rollout_function
from miles.utils.misc import load_function


@contextmanager
def timer(name):
    """Time a block."""
    yield


def convert_samples_to_train_data(args, data, metadata=None):
    """Convert."""
    return {"tokens": [sample.tokens for sample in data], "rewards": [sample.reward for sample in data]}


def split_train_data_by_dp(args, data, config):
    """Split."""
    return [data]


class RolloutManager:
    """Run rollouts and convert their results into training data."""

    def __init__(self, args, pg):
        self.args = args
        self.weight_version = None
        self.data_source = load_function(args.data_source_path)(args)
        self.legacy = args.legacy
        if self.legacy:
            self.generate_rollout = self.eval_generate_rollout = load_function(args.rollout_function_path)
        else:
            given = RolloutFnConstructorInput(args=args, data_source=self.data_source)
            self.generate_rollout = load_rollout_function(given, args.rollout_function_path)
            self.eval_generate_rollout = self.generate_rollout

    async def generate(self, rollout_id):
        """Return the training data of a step."""
        with timer("rollout"):
            data, metadata, metrics = await self._get_rollout_data(rollout_id=rollout_id)
        data = convert_samples_to_train_data(self.args, data, metadata=metadata)
        data_ref = split_train_data_by_dp(self.args, data, None)
        return {"data_ref": data_ref, "metrics": metrics}

    async def eval(self, rollout_id, hf_dir=None):
        """Return the rewards of an evaluation."""
        if self.legacy:
            source = self.data_source
            result = await asyncio.to_thread(
                call_rollout_fn, self.eval_generate_rollout, self.args, rollout_id, source, evaluation=True
            )
        else:
            given = RolloutFnEvalInput(rollout_id=rollout_id)
            result = await asyncio.to_thread(call_rollout_function, self.eval_generate_rollout, given)
        return {name: answer["rewards"] for name, answer in result.data.items()}

    async def _get_rollout_data(self, rollout_id):
        if self.legacy:
            source = self.data_source
            output = await asyncio.to_thread(
                call_rollout_fn, self.generate_rollout, self.args, rollout_id, source, evaluation=False
            )
        else:
            given = RolloutFnTrainInput(rollout_id=rollout_id, weight_version=self.weight_version)
            output = await asyncio.to_thread(call_rollout_function, self.generate_rollout, given)
        return [sample for group in output.samples for sample in group], {}, output.metrics

    async def offload(self, tags=None):
        """Offload the engines."""

    async def onload(self, tags=None):
        """Load the engines again."""

    async def onload_weights(self):
        """Load their weights again."""
        await self.onload(tags=["weights"])

    async def onload_kv(self):
        """Allocate their cache again."""
        await self.onload(tags=["kv_cache"])

    async def recover_updatable_engines(self):
        """Restart dead engines."""

    def set_weight_version(self, weight_version):
        """Remember the version of the weights."""
        self.weight_version = weight_version
