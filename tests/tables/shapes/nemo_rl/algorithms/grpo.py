"""The shape of NeMo-RL's training loops."""

from contextlib import contextmanager


class timer:
    """Stand in for the trainer's timer."""

    @staticmethod
    @contextmanager
    def time(name):
        """Time a block."""
        yield


def refit_policy_generation(policy, policy_generation, colocated_inference):
    return {}


def validate(policy_generation, val_dataloader, tokenizer, val_task_to_env, step, master_config):
    return {}, {}


def grpo_train(policy, policy_generation, steps, master_config):
    total_steps = 0
    while total_steps < steps:
        with timer.time("total_step_time"):
            with timer.time("data_processing"):
                batch = []
            if hasattr(policy_generation, "snapshot_step_metrics"):
                policy_generation.snapshot_step_metrics()
            with timer.time("generation"):
                batch.append(policy_generation.generate())
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


def async_grpo_train(policy, policy_generation, steps, master_config):
    step = 0
    while step < steps:
        with timer.time("total_step_time"):
            with timer.time("exposed_generation"):
                batch = []
            with timer.time("reward_calculation"):
                rewards = list(batch)
            with timer.time("policy_and_reference_logprobs"):
                logprobs = list(batch)
            with timer.time("advantage_calculation"):
                advantages = rewards + logprobs
            with timer.time("policy_training"):
                policy.train(advantages)
            if policy_generation is not None:
                with timer.time("weight_sync"):
                    refit_policy_generation(policy, policy_generation, False)
            if step % 2:
                with timer.time("checkpointing"):
                    policy.save()
        step += 1
