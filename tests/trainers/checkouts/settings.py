"""Settings of slime and of Miles, whose arguments are those of one parser: what is not named is None."""

from argparse import Namespace

PARALLEL = {f"{kind}_size": 1 for kind in ("dp", "cp", "vpp", "pp", "tp")} | {
    "microbatch_group_size_per_vp_stage": 1
}


class Settings(Namespace):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)


def settings(model, port, **more):
    """Return the settings of a rollout of two groups of two samples, of three groups that are begun."""
    return Settings(
        **{
            "hf_checkpoint": model,
            "sglang_router_ip": "127.0.0.1",
            "sglang_router_port": port,
            "sglang_server_concurrency": 8,
            "sglang_dp_size": 1,
            "rollout_num_engines": 1,
            "rollout_num_gpus": 1,
            "rollout_num_gpus_per_engine": 1,
            "num_gpus_per_node": 1,
            "rollout_temperature": 0.0,
            "rollout_top_p": 1.0,
            "rollout_top_k": -1,
            "rollout_max_response_len": 24,
            "rollout_max_context_len": 900,
            "balance_data": False,
            "rollout_skip_special_tokens": True,
            "n_samples_per_prompt": 2,
            "rollout_batch_size": 2,
            "over_sampling_batch_size": 3,
            "rollout_global_dataset": True,
            "use_distributed_post": False,
            "rm_type": "f1",
            "advantage_estimator": "grpo",
            "rewards_normalization": True,
            "grpo_std_normalization": True,
            "global_batch_size": 4,
            "micro_batch_size": 1,
            "rollout_seed": 1,
            "seed": 1,
            **more,
        }
    )


class Prompts:
    """A data source, which makes groups of two samples.

    Each third prompt is a long one, of 100 to 200 tokens, and 100 more each time. `generate_stand_in.py`
    says why.
    """

    def __init__(self, kind):
        self.kind, self.groups, self.returned = kind, 0, []

    def get_samples(self, count):
        """Return the groups that came back, then new ones."""
        groups, self.returned = self.returned[:count], self.returned[count:]
        return groups + [self._group() for _ in range(count - len(groups))]

    __call__ = get_samples

    def add_samples(self, groups):
        """Take groups back."""
        self.returned += groups

    def _group(self):
        number, self.groups = self.groups, self.groups + 1
        prompt = "Say 9. " * 30 * (number // 3 + 1) if number % 3 == 2 else "Add 2 and 3."
        return [
            self.kind(
                group_index=number, index=2 * number + place, prompt=prompt, label="#### 5", metadata={}
            )
            for place in range(2)
        ]


def facts(sample):
    """Return what a sample says of itself, for the tests to hold the log against."""
    return {
        "sample": sample.index,
        "group": sample.group_index,
        "status": sample.status.value,
        "response_length": sample.response_length,
        "tokens": len(sample.tokens),
        "trained_tokens": sum(sample.loss_mask or [1] * sample.response_length),
        "reward": sample.reward if isinstance(sample.reward, float | int) else sample.reward["score"],
    }
