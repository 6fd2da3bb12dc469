"""Stand in for Miles' fully asynchronous rollout: a loop of the first step goes on for ever."""

import asyncio
from types import SimpleNamespace

from miles.rollout.base_types import RolloutFnEvalOutput, RolloutFnTrainOutput
from miles.rollout.inference_rollout.inference_rollout_common import GenerateState, generate_and_rm_group
from miles.rollout.inference_rollout.inference_rollout_eval import run_eval_datasets


class FullyAsyncRolloutFn:
    """Generates ahead of training."""

    def __init__(self, input):
        self.args, self.data_source = input.args, input.data_source
        self.state = GenerateState(input.args)
        self._worker = None

    async def __call__(self, input):
        if input.evaluation:
            return RolloutFnEvalOutput(data=await run_eval_datasets(self.state, {}))
        if self._worker is None:
            self._output = SimpleNamespace(_buffer=[], ready=asyncio.Event())
            self._worker = asyncio.create_task(self._worker_loop())
        return await self._drain(input)

    async def _generate_group(self, prompt_group):
        result = await generate_and_rm_group(
            self.state, prompt_group, sampling_params=self.state.sampling_params.copy(), evaluation=False
        )
        return SimpleNamespace(prompt_group=prompt_group, group=result)

    async def _worker_loop(self):
        while True:
            [prompt_group] = self.data_source.get_samples(1)
            self._output._buffer.append(await asyncio.create_task(self._generate_group(prompt_group)))
            self._output.ready.set()

    async def _drain(self, input):
        data = []
        while len(data) < self.args.rollout_batch_size:
            while not self._output._buffer:
                self._output.ready.clear()
                await self._output.ready.wait()
            data.append(self._output._buffer.pop(0).group)
        return RolloutFnTrainOutput(samples=data, metrics={})
