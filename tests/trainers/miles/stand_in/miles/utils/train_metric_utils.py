"""Stand in for what Miles logs of its performance."""

from miles.utils.tracking_utils import tracking


def log_perf_data_raw(rollout_id, args, is_primary_rank, compute_total_fwd_flops, extra_metrics=None):
    """Log the times of a step."""
    if not is_primary_rank:
        return
    log_dict = {"perf/train_time": 1.0}
    log_dict["rollout/step"] = rollout_id
    tracking.log(args, log_dict, step_key="rollout/step")
