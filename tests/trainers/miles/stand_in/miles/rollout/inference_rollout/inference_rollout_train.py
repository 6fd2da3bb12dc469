"""Stand in for Miles' rollout of a step: more groups than needed, and an abort of the rest."""

import asyncio
from types import SimpleNamespace

from miles.rollout.base_types import RolloutFnTrainOutput
from miles.rollout.inference_rollout.inference_rollout_common import generate_and_rm_group
from miles.utils.http_utils import get, post
from miles.utils.misc import load_function


async def abort(state, pendings, rollout_id):
    """Abort what still runs; return the groups that had begun."""
    args = state.args
    assert not state.aborted
    state.aborted = True
    urls = await get_worker_urls(args)
    await asyncio.gather(*[post(f"{url}/abort_request", {"abort_all": True}) for url in urls])
    aborted_samples = [await pending for pending in pendings]
    return aborted_samples if args.partial_rollout else []


async def get_worker_urls(args):
    """Ask the router for its workers."""
    response = await get("http://router/workers")
    return [worker["url"] for worker in response["workers"]]


def call_dynamic_filter(fn, args, group):
    """Ask the user's filter."""
    return fn(args, group) if fn is not None else SimpleNamespace(keep=True, reason=None)


async def recompute_samples_rollout_logprobs_via_prefill(args, samples, url, sampling_params):
    """Score samples again."""


async def generate_rollout_async(state, rollout_id, data_source):
    """Roll out one step."""
    args = state.args
    dynamic_filter = load_function(args.dynamic_sampling_filter_path)
    pendings, data, all_data = set(), [], []
    while len(data) < args.rollout_batch_size:
        while len(data) + len(pendings) < args.rollout_batch_size:
            for group in data_source(args.over_sampling_batch_size):
                rolled = generate_and_rm_group(state, group, sampling_params=state.sampling_params.copy())
                pendings.add(asyncio.create_task(rolled))
        done, pendings = await asyncio.wait(pendings, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            group = task.result()
            all_data.append(group)
            dynamic_filter_output = call_dynamic_filter(dynamic_filter, args, group)
            if not dynamic_filter_output.keep:
                continue
            if len(data) < args.rollout_batch_size:
                data.append(group)
    aborted_samples = await abort(state, pendings, rollout_id)
    all_samples = sorted(all_data, key=lambda group: group[0].index)
    state.reset()
    if f := load_function(args.rollout_sample_filter_path):
        f(args, data)
    if f := load_function(args.rollout_all_samples_process_path):
        f(args, all_samples, data_source)
    await recompute_samples_rollout_logprobs_via_prefill(args, data, url="", sampling_params={})
    return RolloutFnTrainOutput(samples=data, metrics={"kept": len(data)}), aborted_samples
