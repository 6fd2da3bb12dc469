"""Stand in for Miles' evaluation."""

import asyncio

from miles.rollout.inference_rollout.inference_rollout_common import generate_and_rm
from miles.utils.types import Sample


async def run_eval_datasets(state, prompt_dataset_cache):
    """Evaluate on all datasets."""
    results = {}
    for dataset_cfg in state.args.eval_datasets:
        results |= await eval_rollout_single_dataset(state, dataset_cfg, prompt_dataset_cache)
    return results


async def eval_rollout_single_dataset(state, dataset_cfg, prompt_dataset_cache):
    """Evaluate on one."""
    args = state.args
    samples = [Sample(index=index, prompt=prompt) for index, prompt in enumerate(dataset_cfg.prompts)]
    data = await asyncio.gather(
        *[
            generate_and_rm(state, sample, sampling_params={"max_new_tokens": 4}, evaluation=True)
            for sample in samples
        ]
    )
    reward_key = args.reward_key
    rewards = [sample.reward[reward_key] if reward_key else sample.reward for sample in data]
    return {dataset_cfg.name: {"rewards": rewards, "samples": data}}
