"""The shape of NeMo-RL's training loop with the data plane: its rollouts run in an actor."""

from nemo_rl.algorithms.grpo import timer


def validate_sync(*, rollout_actor, policy, val_dataloader, val_task_to_env, step, master_config):
    return {}, {}


def grpo_train_sync(policy, rollout_actor, steps, master_config):
    total_steps = 0
    while total_steps < steps:
        with timer.time("total_step_time"):
            with timer.time("data_processing"):
                batch = []
            with timer.time("generation"):
                batch.append(rollout_actor.rollout_to_tq())
            with timer.time("reward_calculation"):
                rewards = list(batch)
            with timer.time("policy_and_reference_logprobs"):
                logprobs = list(batch)
            with timer.time("advantage_calculation"):
                advantages = rewards + logprobs
            with timer.time("policy_training"):
                policy.train(advantages)
            if total_steps % 2:
                with timer.time("checkpointing"):
                    policy.save()
        total_steps += 1
