"""Run verl's server mode once, on a CPU: SGLang servers, agent-loop workers and reward workers under Ray.

drive.py MODEL FOLDER MODE

MODE "install" calls install() in this driver; any other leaves it to the environment. The variable SERVERS is
the number of servers. The results go to FOLDER/outcome.json, which the tests read.
"""

import json
import os
import sys
import time
from pathlib import Path

import numpy

HERE = Path(__file__).parent
QUESTIONS = [("Add 2 and 3.", "5"), ("Add 4 and 4.", "8"), ("Say 9.", "9"), ("Say 9.", "9")]
WORKERS = 2
SERVERS = int(os.environ.get("SERVERS", "1"))
SKIPS_TOKENIZER = os.environ.get("SKIP_TOKENIZER_INIT") == "1"  # then there is no detokenizer
#: The order matters: released memory must be resumed before requests are generated.
CONTROLS = (
    *("sleep", "wake_up", "release_kv_cache", "resume_kv_cache"),
    *("clear_kv_cache", "abort_all_requests", "resume_generation"),
)
KILLED = 9  # the step in which a worker is killed


def configuration(model):
    """Return verl's own configuration with the changes that a CPU needs."""
    import verl
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    with initialize_config_dir(f"{Path(verl.__file__).parent}/trainer/config", version_base=None):
        config = compose("ppo_trainer")
    OmegaConf.set_struct(config, False)
    config = OmegaConf.merge(config, OmegaConf.load(HERE / "config/cpu.yaml"))
    config.actor_rollout_ref.model.path = model
    config.actor_rollout_ref.rollout.skip_tokenizer_init = SKIPS_TOKENIZER
    config.actor_rollout_ref.rollout.multi_turn.tool_config_path = str(HERE / "config/tools.yaml")
    return config


def batch(step, validate=False):
    """Return the prompts of a step as verl's trainer hands them over."""
    from verl.protocol import DataProto

    raw = numpy.empty(len(QUESTIONS), dtype=object)
    for row, (question, _) in enumerate(QUESTIONS):
        raw[row] = numpy.array([{"role": "user", "content": question}])
    truths = [truth for _, truth in QUESTIONS]
    columns = {
        "raw_prompt": raw,
        "agent_name": numpy.array(["tool_agent"] * len(truths)),
        "data_source": numpy.array(["openai/gsm8k"] * len(truths)),
        "reward_model": numpy.array([{"style": "rule", "ground_truth": truth} for truth in truths]),
        "tools_kwargs": numpy.array(
            [{"calc_gsm8k_reward": {"create_kwargs": {"ground_truth": truth}}} for truth in truths]
        ),
        "index": numpy.arange(len(truths)),
    }
    prompts = DataProto(non_tensor_batch=columns)
    prompts.meta_info = {"global_steps": step, "validate": validate}
    return prompts


def plain(output, tokenizer):
    """Return the result of a rollout in a form to compare."""
    length = output.batch["responses"].shape[1]
    masks = output.batch["attention_mask"][:, -length:].bool()
    replies = [
        tokenizer.decode(row[mask]) for row, mask in zip(output.batch["responses"], masks, strict=True)
    ]
    scores = output.batch["rm_scores"].sum(dim=1).tolist() if "rm_scores" in output.batch else None
    return {"replies": replies, "turns": output.non_tensor_batch["__num_turns__"].tolist(), "scores": scores}


def start_servers(config):
    """Return the manager of the servers, and the one that passes prompts to the agent loops."""
    from verl.experimental.agent_loop import AgentLoopManager
    from verl.experimental.reward_loop import RewardLoopManager
    from verl.workers.rollout.llm_server import LLMServerManager

    config.actor_rollout_ref.rollout.n_gpus_per_node = SERVERS  # each has one
    rewards = RewardLoopManager(config=config, rm_resource_pool=None)
    servers = LLMServerManager.create(config=config, worker_group=None, rollout_resource_pool=None)
    loops = AgentLoopManager.create(
        config=config,
        llm_client=servers.get_client(),
        reward_loop_worker_handles=rewards.reward_loop_workers,
    )
    return servers, loops


def control(ray, server):
    """Call the methods of a server that trainers call around their own work."""
    for method in CONTROLS:
        ray.get(getattr(server, method).remote())


def processes(ray, handles):
    """Return the class, the process and the installed patches of each actor."""

    def look(actor):
        import inspect

        installed = sys.modules.get("sglang_instrument.startup.install")
        kind = type(actor)
        methods = [name for name in vars(kind) if not name.startswith("_") and callable(getattr(kind, name))]
        return {
            "class": kind.__name__,
            "pid": os.getpid(),
            "installed": bool(installed and installed.installed()),
            "coroutines": sorted(
                name for name in methods if inspect.iscoroutinefunction(getattr(kind, name))
            ),
            "signatures": {name: str(inspect.signature(getattr(kind, name))) for name in methods},
        }

    return [ray.get(handle.__ray_call__.remote(look)) for handle in handles]


def kill_a_worker_in_mid_step(ray, loops, folder):
    """Kill the first agent-loop worker while its tools run; the other one goes on."""
    hang = Path(folder) / "hang"
    hang.touch()
    victim, other = loops.agent_loop_workers
    pid = ray.get(victim.__ray_call__.remote(lambda actor: os.getpid()))
    lost, finished = (
        worker.generate_sequences.remote(part)
        for worker, part in zip((victim, other), batch(KILLED).chunk(WORKERS), strict=True)
    )
    wait_for_tools(folder)
    wait_until_written(folder, 0, "turn_end")  # a kill loses records that are not on disk yet
    os.kill(pid, 9)
    try:
        ray.get(lost)
    except ray.exceptions.RayError as error:
        died = type(error).__name__
    hang.unlink()
    ray.get(finished)
    wait_until_written(folder, 1, "step_closed")
    return {"pid": pid, "error": died}


def wait_for_tools(folder):
    """Wait until the tool's file says that it hangs."""
    while not (Path(folder) / "hanging").exists():
        time.sleep(0.05)


def wait_until_written(folder, worker, event):
    """Wait until the log of a worker's last step has a record of `event`, if anything is logged."""
    if not (Path(folder) / "run").exists():
        return
    log = Path(folder) / f"run/step_{KILLED}/worker_{worker}.jsonl"
    ends = time.monotonic() + 300
    while not (log.exists() and event in events_of(log)):
        if time.monotonic() > ends:
            raise TimeoutError(f"no {event} in {log}: {events_of(log) if log.exists() else 'no file'}")
        time.sleep(0.05)


def events_of(log):
    """Return the events of the whole lines of a log; in a line of `open_now`, others are named too."""
    *lines, _ = log.read_bytes().split(b"\n")
    return [json.loads(line)["event"] for line in lines]


def once_more_if_late(start):
    """Start Ray; on a loaded machine, its own server may not answer within its minute: then once more."""
    try:
        start()
    except Exception as error:
        if "timed out during startup" not in str(error):
            raise
        start()


def main(model, folder, mode):
    import ray
    import verl  # noqa: F401 - before ray.init(), as in verl's own main_ppo: its plugins are loaded here

    if mode == "install":
        import sglang_instrument

        sglang_instrument.install(log_dir=folder, experiment="run")
    handed = ("PYTHONPATH", "SGLANG_USE_CPU_ENGINE", "TOKENIZERS_PARALLELISM", "PYTHONWARNINGS", "HANG")
    started = {
        "address": "local",
        "num_cpus": 8,
        "num_gpus": SERVERS,  # for Ray, a GPU is only a number
        "include_dashboard": False,
        "_temp_dir": os.environ["RAY_TMPDIR"],
        "runtime_env": {"env_vars": {name: os.environ[name] for name in handed if name in os.environ}},
    }
    once_more_if_late(lambda: ray.init(**started))
    config = configuration(model)
    servers, loops = start_servers(config)
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    outputs = []
    for step, validate in ((1, False), (2, False), (2, True)):
        outputs.append(plain(loops.generate_sequences(prompts=batch(step, validate)), tokenizer))
        if step == 1:
            control(ray, servers.server_handles[0])
    outcome = {
        "outputs": outputs,
        "processes": processes(ray, [*servers.server_handles, *loops.agent_loop_workers]),
        "driver": os.getpid(),
        "killed": kill_a_worker_in_mid_step(ray, loops, folder),
    }
    (Path(folder) / "outcome.json").write_text(json.dumps(outcome, default=str))
    # No ray.shutdown(): most drivers end like this, with their actors alive.


if __name__ == "__main__":
    main(*sys.argv[1:])
