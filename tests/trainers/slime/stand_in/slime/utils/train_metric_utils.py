"""Stand in for slime's log of a rollout's performance, which a training worker writes after training."""

from slime.utils import logging_utils


def log_perf_data_raw(rollout_id, args, is_primary_rank, compute_total_fwd_flops):
    """Log how long the phases of a rollout and its training took."""
    raw = {"train": 1.0}
    if not is_primary_rank:
        return

    log_dict = {f"perf/{key}_time": value for key, value in raw.items()}
    if compute_total_fwd_flops is not None:
        log_dict["perf/actor_train_tflops"] = compute_total_fwd_flops(seq_lens=[1])

    step = rollout_id
    log_dict["rollout/step"] = step
    logging_utils.log(args, log_dict, step_key="rollout/step")
