"""Stand in for slime's rollout: the same functions in the same order, with a stand-in server."""

import asyncio
import inspect
import uuid
from contextlib import contextmanager

from slime.backends.sglang_utils.server_control import abort_servers_until_idle
from slime.observability.trace_utils import trace_function, trace_span
from slime.rollout.base_types import RolloutFnEvalOutput, RolloutFnTrainOutput
from slime.rollout.sample_hooks import apply_rollout_sample_hooks
from slime.utils.async_utils import run
from slime.utils.http_utils import get, post
from slime.utils.misc import SingletonMeta, load_function
from slime.utils.types import Sample

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
        """Clear the state of running requests."""
        self.remaining_batch_size, self.pendings, self.aborted = 0, set(), False

    def submit_generate_tasks(self, samples):
        """Submit groups."""
        for group in samples:
            rolled = generate_and_rm_group(
                self.args, group, sampling_params=self.sampling_params.copy(), evaluation=False
            )
            self.pendings.add(asyncio.create_task(rolled))
        self.remaining_batch_size += len(samples)


async def generate(args, sample, sampling_params):
    """Ask for one reply."""
    prompt_ids = sample.tokens or [ord(letter) for letter in sample.prompt]
    if sample.metadata.get("slow"):
        sampling_params["steps"] = 100_000
    payload = {"sampling_params": sampling_params, "return_logprob": True, "input_ids": prompt_ids}
    sample.tokens = prompt_ids
    with trace_span(sample, "sglang_generate"):
        output = await post("http://router/generate", payload, headers=None)
    new = [item[1] for item in output["meta_info"]["output_token_logprobs"]]
    sample.append_response_tokens(args, tokens=new, meta_info=output["meta_info"], text=output["text"])
    return sample


@trace_function("generate_and_rm", target="sample")
async def generate_and_rm(args, sample, sampling_params, evaluation: bool = False):
    """Generate one sample, possibly by a custom function, and score it."""
    if sample.status in (Sample.Status.COMPLETED, Sample.Status.TRUNCATED):
        return sample
    state = GenerateState(args)
    async with state.semaphore:
        if state.aborted:
            sample.status = Sample.Status.ABORTED
            return sample
        with state.dp_rank_context() as _:
            custom_func_path = (
                getattr(sample, "generate_function_path", None) or args.custom_generate_function_path
            )
            if custom_func_path is not None:
                custom_generate_func = load_function(custom_func_path)
                if "evaluation" in inspect.signature(custom_generate_func).parameters:
                    sample = await custom_generate_func(args, sample, sampling_params, evaluation=evaluation)
                else:
                    sample = await custom_generate_func(args, sample, sampling_params)
            else:
                sample = await generate(args, sample, sampling_params)
    sample = await apply_rollout_sample_hooks(args, sample, evaluation=evaluation)
    if args.group_rm:
        return sample
    if isinstance(sample, list):
        rewards = await batched_async_rm(args, sample)
        for member, reward in zip(sample, rewards, strict=False):
            member.reward = reward
        return sample
    if sample.status != Sample.Status.ABORTED and sample.reward is None:
        with trace_span(sample, "reward_model"):
            sample.reward = await async_rm(args, sample)
    return sample


@trace_function("generate_and_rm_group", target="group")
async def generate_and_rm_group(args, group, sampling_params, evaluation: bool = False):
    """Make the samples of one prompt side by side."""
    state = GenerateState(args)
    if state.aborted:
        return group
    for sample in group:
        sample.session_id = sample.session_id or str(uuid.uuid4())
    tasks = [
        asyncio.create_task(generate_and_rm(args, sample, sampling_params.copy(), evaluation=evaluation))
        for sample in group
    ]
    group = await asyncio.gather(*tasks)
    if not state.aborted and args.group_rm:
        rewards = await batched_async_rm(args, group)
        for sample, reward in zip(group, rewards, strict=False):
            sample.reward = reward
    return group


async def abort(args, rollout_id: int):
    """Abort running requests; return the started groups."""
    aborted_samples = []
    state = GenerateState(args)
    state.aborted = True
    response = await get("http://router/workers")
    urls = [worker["url"] for worker in response["workers"]]
    await abort_servers_until_idle(urls)
    while state.pendings:
        done, state.pendings = await asyncio.wait(state.pendings, return_when=asyncio.FIRST_COMPLETED)
        aborted_samples += [task.result() for task in done if args.partial_rollout]
    return aborted_samples


def call_dynamic_filter(fn, args, group):
    """Ask the user's filter."""
    return fn(args, group)


async def generate_rollout_async(args, rollout_id: int, data_source):
    """Generate more groups than training needs, and keep as many as it needs."""
    state = GenerateState(args)
    dynamic_filter = (
        load_function(args.dynamic_sampling_filter_path) if args.dynamic_sampling_filter_path else None
    )
    data, all_data = [], []
    while len(data) < args.rollout_batch_size:
        while state.remaining_batch_size < args.rollout_batch_size:
            state.submit_generate_tasks(data_source(args.over_sampling_batch_size))
        done, state.pendings = await asyncio.wait(state.pendings, return_when=asyncio.FIRST_COMPLETED)
        # slime iterates over the set in the order of memory addresses: two runs would differ.
        for task in sorted(done, key=lambda task: str(task.result())):
            group = task.result()
            all_data.append(group)
            if dynamic_filter is not None:
                dynamic_filter_output = call_dynamic_filter(dynamic_filter, args, group)
                if not dynamic_filter_output.keep:
                    state.remaining_batch_size -= 1
                    continue
            if len(data) < args.rollout_batch_size:
                data.append(group)
    aborted_samples = await abort(args, rollout_id)
    all_samples = sorted(all_data, key=str)
    state.reset()
    if args.rollout_sample_filter_path is not None:
        filter_func = load_function(args.rollout_sample_filter_path)
        filter_func(args, data)
    if args.rollout_all_samples_process_path is not None:
        process_func = load_function(args.rollout_all_samples_process_path)
        process_func(args, all_samples, data_source)
    return RolloutFnTrainOutput(data, {"dropped": len(all_data) - len(data)}), aborted_samples


async def eval_rollout_single_dataset(args, rollout_id: int, dataset_cfg):
    """Evaluate on one dataset."""
    tasks = []
    for index, prompt in enumerate(dataset_cfg.prompts):
        sample = Sample(index=index, prompt=prompt)
        rolled = generate_and_rm(args, sample, sampling_params={"max_new_tokens": 4}, evaluation=True)
        tasks.append(asyncio.create_task(rolled))
    data = [await task for task in asyncio.as_completed(tasks)]
    reward_key = args.reward_key
    return {dataset_cfg.name: [sample.reward[reward_key] if reward_key else sample.reward for sample in data]}


async def eval_rollout(args, rollout_id: int):
    """Evaluate on all datasets."""
    results = await asyncio.gather(
        *(eval_rollout_single_dataset(args, rollout_id, dataset) for dataset in args.eval_datasets)
    )
    return RolloutFnEvalOutput({name: answer for result in results for name, answer in result.items()}), []


def generate_rollout(args, rollout_id: int, data_source, evaluation: bool = False):
    """Run a rollout or an evaluation."""
    if evaluation:
        return run(eval_rollout(args, rollout_id))[0]
    output, aborted_samples = run(generate_rollout_async(args, rollout_id, data_source.get_samples))
    if aborted_samples:
        data_source.add_samples(aborted_samples)
    return output
