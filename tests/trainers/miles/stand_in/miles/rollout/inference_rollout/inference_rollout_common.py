"""Stand in for Miles' requests and groups."""

import asyncio
import uuid
from copy import deepcopy

from miles.rollout.base_types import GenerateFnInput, RolloutFnEvalOutput
from miles.rollout.generate_hub.single_turn import generate
from miles.rollout.inference_rollout.compatibility import load_generate_function
from miles.rollout.rm_hub import async_rm, batched_async_rm
from miles.utils.lifecycle import TrajectoryLifecycle
from miles.utils.types import Sample


class GenerateState:
    """What all requests of a rollout share."""

    def __init__(self, args):
        self.args = args
        self.generate_fn_semaphore = asyncio.Semaphore(args.sglang_server_concurrency)
        self.sampling_params = {"max_new_tokens": 8}
        self.generate_function = load_generate_function(args.custom_generate_function_path) or generate
        self.aborted = False

    def reset(self):
        """Forget the abort."""
        self.aborted = False


async def generate_and_rm(state, sample, sampling_params, evaluation=False):
    """Generate one sample and score it."""
    args = state.args
    if sample.status in (Sample.Status.COMPLETED, Sample.Status.TRUNCATED):
        return sample
    sink = None if evaluation else TrajectoryLifecycle().sink
    try:
        async with state.generate_fn_semaphore:
            if state.aborted:
                sample.status = Sample.Status.ABORTED
                return sample
            generate_fn = load_generate_function(sample.generate_function_path) or state.generate_function
            output = await generate_fn(
                GenerateFnInput(
                    state=state,
                    sample=sample,
                    sampling_params=deepcopy(sampling_params),
                    evaluation=evaluation,
                )
            )
            sample = output.samples
    finally:
        if sink is not None:
            sink.attempt_end(sample)
    if args.group_rm:
        return sample
    if sample.status != Sample.Status.ABORTED and sample.reward is None:
        sample.reward = await async_rm(args, sample)
    return sample


async def generate_and_rm_group(state, group, sampling_params, evaluation=False, sample_done_callback=None):
    """Make the samples of one prompt side by side."""
    args = state.args
    if state.aborted:
        return group
    if args.sglang_router_policy == "consistent_hashing":
        for sample in group:
            sample.routing_key = sample.routing_key or str(uuid.uuid4())
    tasks = [
        asyncio.create_task(generate_and_rm(state, sample, sampling_params.copy(), evaluation=evaluation))
        for sample in group
    ]
    group = await asyncio.gather(*tasks)
    if not state.aborted and args.group_rm:
        await batched_async_rm(args, group, inplace_set_reward_field=True)
    return group


class InferenceRolloutFn:
    """Miles' own rollout function."""

    def __init__(self, input):
        self.data_source = input.data_source
        self.state = GenerateState(input.args)

    async def __call__(self, input):
        if input.evaluation:
            from miles.rollout.inference_rollout.inference_rollout_eval import run_eval_datasets

            return RolloutFnEvalOutput(data=await run_eval_datasets(self.state, {}))
        from miles.rollout.inference_rollout.inference_rollout_train import generate_rollout_async

        output, aborted = await generate_rollout_async(
            self.state, input.rollout_id, self.data_source.get_samples
        )
        self.data_source.add_samples(aborted)
        return output
