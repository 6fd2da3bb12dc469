"""Train with verl's own PPO trainer for two steps, on a CPU: `main_ppo` as its users start it.

train.py MODEL FOLDER MODE

MODE is "sync", "colocate_async" or "separate_async", of the V1 trainer; "reward_model", which is "sync" with
a reward model beside the actor; "v0", the trainer before V1; or "fully_async" or "one_step_off", the recipes
below `verl.experimental`. The environment switches the instrumentation on.
"""

import os
import sys
from pathlib import Path

import drive
import pandas

HERE = Path(__file__).parent
RECIPES = ("fully_async", "one_step_off")
HANDED = (
    *("PYTHONPATH", "PYTHONWARNINGS", "SGLANG_USE_CPU_ENGINE", "TOKENIZERS_PARALLELISM", "OMP_NUM_THREADS"),
    *("VERL_PLATFORM", "VERL_USE_EXTERNAL_MODULES", "VERL_ENGINE_DEVICE", "SGLANG_INSTRUMENT_NATIVE"),
    *("HANG", "TOOL_SEC", "WAIT_FOR", "WAIT_FROM_CALL", "VERL_FILE_LOGGER_PATH"),
)


def write_questions(path):
    """Write the dataset in the form that verl expects."""
    rows = [
        {
            "prompt": [{"role": "user", "content": question}],
            "data_source": "openai/gsm8k",
            "agent_name": "tool_agent",
            "reward_model": {"style": "rule", "ground_truth": truth},
            "extra_info": {
                "index": index,
                "need_tools_kwargs": True,
                "tools_kwargs": {"calc_gsm8k_reward": {"create_kwargs": {"ground_truth": truth}}},
            },
        }
        for index, (question, truth) in enumerate(drive.QUESTIONS)
    ]
    pandas.DataFrame(rows).to_parquet(path)


def of_recipe(mode):
    """Return a recipe's own configuration without verl's, which it extends; empty for the other trainers."""
    import verl
    from omegaconf import OmegaConf

    folder = Path(verl.__file__).parent / f"experimental/{mode}_policy/config"
    if not folder.exists():
        return OmegaConf.create()
    recipe = OmegaConf.load(folder / f"{mode}_ppo_trainer.yaml")
    return OmegaConf.create(
        {name: part for name, part in recipe.items() if name not in ("hydra", "defaults")}
    )


def task_runner(mode):
    """Return the class that runs a training."""
    if mode == "fully_async":
        from verl.experimental.fully_async_policy.fully_async_main import FullyAsyncTaskRunner as Runner
    elif mode == "one_step_off":
        from verl.experimental.one_step_off_policy.main_ppo import OneStepTaskRunner as Runner
    elif mode == "v0":
        from verl.trainer.main_ppo_v0 import TaskRunner as Runner
    else:
        from verl.trainer.main_ppo import TaskRunnerV1 as Runner
    return Runner


def configuration(model, folder, mode):
    """Return verl's own configuration for a training of a few steps on a CPU."""
    from omegaconf import OmegaConf

    layers = [HERE / "config/training.yaml", HERE / f"config/{mode}.yaml"]
    more = [OmegaConf.load(path) for path in layers if path.exists()]
    config = OmegaConf.merge(drive.configuration(model), of_recipe(mode), *more)
    config.critic.model.path = config.critic.model.tokenizer_path = model
    config.data.train_files = config.data.val_files = f"{folder}/questions.parquet"
    config.trainer.default_local_dir = f"{folder}/checkpoints"
    config.trainer.use_v1 = mode not in ("v0", *RECIPES)
    if mode in config.trainer.v1:
        config.trainer.v1.trainer_mode = mode
    judge = config.reward.reward_model
    if judge.enable:
        engine = config.actor_rollout_ref.rollout.engine_kwargs.sglang
        judge.rollout.engine_kwargs.sglang = {**engine, **judge.rollout.engine_kwargs.sglang}
    config.ray_kwargs.ray_init = {
        "address": "local",
        "num_cpus": 64,
        "num_gpus": 4,  # for Ray, a GPU is only a number
        "include_dashboard": False,
        "_temp_dir": os.environ["RAY_TMPDIR"],
        "runtime_env": {"env_vars": {name: os.environ[name] for name in HANDED if name in os.environ}},
    }
    return config


def main(model, folder, mode):
    from verl.trainer.main_ppo import run_ppo
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    write_questions(f"{folder}/questions.parquet")
    config = configuration(model, folder, mode)
    if mode not in RECIPES:
        validate_config(config, need_reference_policy(config), need_critic(config))
    runner = task_runner(mode)
    drive.once_more_if_late(lambda: run_ppo(config, task_runner_class=runner))


if __name__ == "__main__":
    main(*sys.argv[1:])
