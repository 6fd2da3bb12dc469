"""Run a rollout of the stand-in for slime in one of several ways; print its result for training.

python drive.py WAY ORDER: ORDER is "before" or "after" the import of the rollout, or "never".
"""

import inspect
import json
import multiprocessing
import pickle
import sys
import time
from argparse import Namespace
from types import SimpleNamespace

from reward_server import reward_server

import sglang_instrument

WAY, ORDER = sys.argv[1:3]
PLAIN = {
    "n_samples_per_prompt": 2,
    "rollout_batch_size": 2,
    "over_sampling_batch_size": 2,
    "sglang_server_concurrency": 4,
    "partial_rollout": True,
    "group_rm": False,
    "rm_type": "rule",
    "reward_key": None,
    "slow_groups": (),
    "custom_rm_path": None,
    "custom_generate_function_path": None,
    "dynamic_sampling_filter_path": None,
    "rollout_sample_filter_path": None,
    "rollout_all_samples_process_path": None,
    "rollout_sample_hook_path": None,
    "eval_datasets": [SimpleNamespace(name="tiny", prompts=["a", "b", "c"])],
    "data_source_path": "user_functions.Prompts",
    "rollout_function_path": "slime.rollout.sglang_rollout.generate_rollout",
    "eval_function_path": "slime.rollout.sglang_rollout.generate_rollout",
}
FUNCTIONS = {
    "custom_generate_function_path": "user_functions.generate",
    "custom_rm_path": "user_functions.reward",
    "reward_key": "score",
    "dynamic_sampling_filter_path": "user_functions.keep",
    "rollout_sample_filter_path": "user_functions.look_at",
    "rollout_all_samples_process_path": "user_functions.look_at",
    "rollout_sample_hook_path": ["user_functions.hook"],
}
ASYNC = {
    "rollout_function_path": "slime.rollout.fully_async_rollout.generate_rollout_fully_async",
    "custom_generate_function_path": "user_functions.wait_for_next_step",
    "rollout_batch_size": 1,
    "n_samples_per_prompt": 1,
}
WAYS = {
    "plain": {},
    "functions": FUNCTIONS,
    "group": {**FUNCTIONS, "group_rm": True},
    "fan_out": {
        **FUNCTIONS,
        "custom_generate_function_path": "user_functions.fan_out",
        "dynamic_sampling_filter_path": None,
    },
    "abort": {"slow_groups": (2,), "over_sampling_batch_size": 3},
    "remote": {"rm_type": "remote_rm"},
    "async": ASYNC,
}


def switch_on():
    """Install, as a driver does."""
    sglang_instrument.install()


def looks():
    """Return kind, signature and pickling of the functions that we patch."""
    from slime.backends.sglang_utils.sglang_engine import SGLangEngine
    from slime.ray.rollout import RolloutManager
    from slime.rollout import base_types, rm_hub, sglang_rollout
    from slime.utils import http_utils

    functions = [
        sglang_rollout.generate_rollout,
        sglang_rollout.generate_and_rm,
        sglang_rollout.generate_and_rm_group,
        sglang_rollout.abort,
        http_utils.post,
        rm_hub.async_rm,
        base_types.call_rollout_fn,
        SGLangEngine.update_weights_from_tensor,
        RolloutManager.generate,
    ]
    assert all(pickle.loads(pickle.dumps(function)) is function for function in functions)
    seen = [
        (str(inspect.signature(function)), inspect.iscoroutinefunction(function), function.__qualname__)
        for function in functions
    ]
    return seen, [inspect.unwrap(function).__code__ for function in functions]


def told_by_child(function):
    """Print in a spawned child the kind and signature of a function."""
    return inspect.iscoroutinefunction(function), str(inspect.signature(function))


def control():
    """Call the methods of an engine that training calls."""
    from slime.backends.sglang_utils.sglang_engine import SGLangEngine

    engine = SGLangEngine(None, rank=3)
    engine.init(None, 1, 2)
    engine.release_memory_occupation()
    engine.resume_memory_occupation(tags=["weights"])
    engine.pause_generation()
    answers = [
        engine.update_weights_from_tensor(["x"], weight_version="7"),
        engine.update_weights_from_disk("m"),
    ]
    answers.append(engine.update_weights_from_distributed(["a", "b"], [], [], "g"))
    engine.continue_generation()
    return answers


def rollouts():
    """Return the results of two steps and an evaluation."""
    from slime.ray.rollout import RolloutManager

    with reward_server(refused=1) as address:
        return rolled_out(RolloutManager(Namespace(**{**PLAIN, **WAYS[WAY], "rm_url": address}), None))


def rolled_out(manager):
    """Return what two steps and an evaluation give."""
    out = [manager.generate(0)]
    if WAY == "async":
        import user_functions

        while 1 not in user_functions.BEGUN:
            time.sleep(0.001)
    out.append(manager.generate(1))
    return out if WAY in ("async", "group", "fan_out") else [*out, manager.eval(1)]


def main():
    if ORDER == "before":
        switch_on()
    if WAY == "looks":
        before, codes = looks()
        switch_on()
        during, changed = looks()
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            from slime.rollout.sglang_rollout import generate_and_rm

            child = pool.apply(told_by_child, (generate_and_rm,))
        sglang_instrument.uninstall()
        after, restored = looks()
        assert before == during == after
        assert child == told_by_child(generate_and_rm)
        assert all(old is not new for old, new in zip(codes, changed, strict=True))
        assert all(old is new for old, new in zip(codes, restored, strict=True))
        return
    if ORDER == "after":
        import slime.ray.rollout
        import slime.rollout.fully_async_rollout  # noqa: F401

        switch_on()
    print(json.dumps(control() if WAY == "control" else rollouts(), default=str))
    sglang_instrument.flush()


if __name__ == "__main__":
    main()
