"""Stand in for Miles' rollout of the old kind, which is slime's."""

import asyncio
from contextlib import contextmanager
from types import SimpleNamespace

from miles.rollout.base_types import GenerateFnInput, RolloutFnEvalOutput, RolloutFnTrainOutput
from miles.rollout.inference_rollout.compatibility import load_generate_function
from miles.utils.async_utils import run
from miles.utils.http_utils import get, post
from miles.utils.lifecycle import TrajectoryLifecycle
from miles.utils.misc import SingletonMeta, load_function
from miles.utils.types import Sample

from .rm_hub import async_rm, batched_async_rm


class GenerateState(metaclass=SingletonMeta):
    """The state that all rollouts of a process share."""

    def __init__(self, args):
        self.args = args
        self.semaphore = asyncio.Semaphore(args.sglang_server_concurrency)
        self.sampling_params = {"max_new_tokens": 8}
        self.reset()

    @contextmanager
    def dp_rank_context(self):
        """Choose a rank."""
        yield 0

    def reset(self):
        """Forget running requests."""
        self.pendings, self.aborted = set(), False


async def generate(args, sample, sampling_params):
    """Ask for one reply."""
    prompt_ids = [ord(letter) for letter in sample.prompt]
    payload = {"sampling_params": sampling_params, "input_ids": prompt_ids}
    output = await post("http://router/generate", payload, headers=None)
    sample.update(prompt_ids, output)
    return sample


async def generate_and_rm(args, sample, sampling_params, evaluation=False):
    """Generate one sample and score it."""
    if sample.status in (Sample.Status.COMPLETED, Sample.Status.TRUNCATED):
        return sample
    state = GenerateState(args)
    sink = None if evaluation else TrajectoryLifecycle().sink
    async with state.semaphore:
        if state.aborted:
            sample.status = Sample.Status.ABORTED
            return sample
        with state.dp_rank_context() as _:
            custom_func_path = (
                getattr(sample, "generate_function_path", None) or args.custom_generate_function_path
            )
            generate_fn = load_generate_function(custom_func_path) if custom_func_path else None
            if generate_fn is not None:
                given = GenerateFnInput(state, sample, sampling_params, evaluation)
                sample = (await generate_fn(given)).samples
            else:
                sample = await generate(args, sample, sampling_params)
    if sink is not None:
        sink.attempt_end(sample)
    if sample.status != Sample.Status.ABORTED and sample.reward is None and not args.group_rm:
        sample.reward = await async_rm(args, sample)
    return sample


async def generate_and_rm_group(args, group, sampling_params, evaluation=False):
    """Make the samples of one prompt side by side."""
    tasks = [
        asyncio.create_task(generate_and_rm(args, sample, sampling_params.copy(), evaluation=evaluation))
        for sample in group
    ]
    group = await asyncio.gather(*tasks)
    if args.group_rm:
        await batched_async_rm(args, group, inplace_set_reward_field=True)
    return group


async def abort(args, rollout_id):
    """Abort what still runs."""
    state = GenerateState(args)
    state.aborted = True
    urls = [worker["url"] for worker in (await get("http://router/workers"))["workers"]]
    abort_tasks = [post(f"{url}/abort_request", {"abort_all": True}) for url in urls]
    abort_results = await asyncio.gather(*abort_tasks, return_exceptions=True)
    assert all(isinstance(answer, dict) for answer in abort_results)
    return [await pending for pending in state.pendings]


def call_dynamic_filter(fn, args, group):
    """Ask the user's filter."""
    return fn(args, group) if fn is not None else SimpleNamespace(keep=True, reason=None)


async def generate_rollout_async(args, rollout_id, data_source):
    """Roll out one step."""
    state = GenerateState(args)
    dynamic_filter = load_function(args.dynamic_sampling_filter_path)
    data = []
    for group in data_source(args.rollout_batch_size):
        group = await generate_and_rm_group(args, group, state.sampling_params.copy())
        dynamic_filter_output = call_dynamic_filter(dynamic_filter, args, group)
        if dynamic_filter_output.keep:
            data.append(group)
    aborted_samples = await abort(args, rollout_id)
    all_samples = data
    state.reset()
    if (x := args.rollout_sample_filter_path) is not None:
        filter_func = load_function(x)
        filter_func(args, data)
    if (x := args.rollout_all_samples_process_path) is not None:
        process_func = load_function(x)
        process_func(args, all_samples, data_source)
    return RolloutFnTrainOutput(samples=data, metrics={}), aborted_samples


async def eval_rollout_single_dataset(args, rollout_id, dataset_cfg):
    """Evaluate on one dataset."""
    samples = [Sample(index=index, prompt=prompt) for index, prompt in enumerate(dataset_cfg.prompts)]
    rolled = [generate_and_rm(args, sample, {"max_new_tokens": 4}, evaluation=True) for sample in samples]
    data = await asyncio.gather(*rolled)
    reward_key = args.reward_key
    rewards = [sample.reward[reward_key] if reward_key else sample.reward for sample in data]
    return {dataset_cfg.name: {"rewards": rewards, "samples": data}}


def generate_rollout(args, rollout_id, data_source, evaluation=False):
    """Run a rollout or an evaluation."""
    if evaluation:
        return RolloutFnEvalOutput(run(eval_rollout_single_dataset(args, rollout_id, args.eval_datasets[0])))
    output, aborted_samples = run(generate_rollout_async(args, rollout_id, data_source.get_samples))
    data_source.add_samples(aborted_samples)
    return output
