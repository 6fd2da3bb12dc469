"""The shape of NeMo-RL's loops of PPO, which train a value model, too."""

from nemo_rl.algorithms.grpo import refit_policy_generation, timer


def validate(policy_generation, val_dataloader, tokenizer, val_task_to_env, step, master_config):
    return {}, {}


def ppo_train(policy, value_model, policy_generation, steps, master_config):
    total_steps = 0
    while total_steps < steps:
        with timer.time("total_step_time"):
            with timer.time("data_processing"):
                batch = []
            with timer.time("generation"):
                batch.append(policy_generation.generate())
            with timer.time("reward_calculation"):
                rewards = list(batch)
            with timer.time("value_inference"):
                values = value_model.values(batch)
            with timer.time("policy_and_reference_logprobs"):
                logprobs = list(batch)
            with timer.time("advantage_calculation"):
                advantages = rewards + logprobs + values
            with timer.time("value_training"):
                value_model.train(values)
            if total_steps:
                with timer.time("policy_training"):
                    policy.train(advantages)
            if total_steps % 2:
                with timer.time("checkpointing"):
                    policy.save()
        total_steps += 1


def async_ppo_train(policy, value_model, policy_generation, steps, master_config):
    step = 0
    while step < steps:
        with timer.time("total_step_time"):
            with timer.time("exposed_generation"):
                batch = []
            with timer.time("value_inference"):
                values = value_model.values(batch)
            with timer.time("policy_and_reference_logprobs"):
                logprobs = list(batch)
            with timer.time("advantage_calculation"):
                advantages = logprobs + values
            with timer.time("value_training"):
                value_model.train(values)
            if step:
                with timer.time("policy_training"):
                    policy.train(advantages)
            with timer.time("weight_sync"):
                refit_policy_generation(policy, policy_generation, False)
            if step % 2:
                with timer.time("checkpointing"):
                    policy.save()
        step += 1
