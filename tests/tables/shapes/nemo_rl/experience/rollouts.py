"""The shape of NeMo-RL's rollouts."""

import asyncio


def generate_responses(policy_generation, batch):
    return batch, [], {}


def calculate_rewards(batch, task_to_env):
    return batch


def run_multi_turn_rollout(
    policy_generation, input_batch, tokenizer, task_to_env, max_seq_len, max_rollout_turns=9
):
    batch_size = len(input_batch)
    active_indices = list(range(batch_size))
    active_samples_per_turn = []
    for turn in range(max_rollout_turns):
        if not active_indices:
            break
        active_samples_per_turn.append(len(active_indices))
        active_batch, generated_ids, gen_metrics = generate_responses(policy_generation, input_batch)
        env_output = calculate_rewards(active_batch, task_to_env)
        active_indices = env_output[1:]
    return input_batch, gen_metrics


async def async_generate_response_for_sample_turn(policy_generation, message_log):
    return message_log, [], 0, {}


async def run_sample_multi_turn_rollout(
    sample_idx,
    initial_sample_state,
    policy_generation,
    tokenizer,
    task_to_env,
    max_seq_len,
    max_rollout_turns=9,
):
    task_name = initial_sample_state["task_name"]
    total_reward = 0.0
    turn_count = token_count = assistant_token_count = env_token_count = 0
    terminated = truncated = False
    turn_total_tokens = []
    for turn in range(max_rollout_turns):
        if terminated or truncated:
            break
        turn_count += 1
        try:
            (
                message_log,
                generated_tokens,
                input_lengths,
                gen_metrics,
            ) = await async_generate_response_for_sample_turn(policy_generation, [])
            assistant_token_count += len(generated_tokens)
            turn_total_tokens.append(input_lengths + len(generated_tokens))
        except Exception as e:
            print(f"Error: {e}")
            break
        env_output = await asyncio.to_thread(calculate_rewards, [message_log], task_to_env)
        total_reward += env_output.rewards[0]
        terminated = env_output.terminateds[0]
        env_token_count += 1
        token_count += 1
        if not terminated:
            if env_output.next_stop_strings[0] is not None:
                task_name = str(task_name)
    if turn_count >= max_rollout_turns:
        truncated = True
    return {"total_reward": total_reward}, {"turn_count": turn_count}


async def _run_multi_turn_rollout_async(policy_generation, input_batch, tokenizer, task_to_env, max_seq_len):
    batch_size = len(input_batch["message_log"])

    async def run_single_sample_with_error_handling(i, sample_state):
        return await run_sample_multi_turn_rollout(
            i, sample_state, policy_generation, tokenizer, task_to_env, 1
        )

    sample_results = await asyncio.gather(
        *(run_single_sample_with_error_handling(i, {}) for i in range(batch_size)), return_exceptions=False
    )
    return sample_results
