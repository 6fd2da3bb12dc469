"""The shape of what slime logs of a rollout's training, from 0.3.1 on."""


def log_perf_data(rollout_id, args, extra_metrics=None):
    log_dict = {}
    step = compute_rollout_step(args, rollout_id)
    log_dict["rollout/step"] = step
    logging_utils.log(args, log_dict, step_key="rollout/step")
