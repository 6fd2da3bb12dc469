"""Stand in for slime's rollout actor: an actor if Ray is installed, else a plain class."""

from slime.rollout.base_types import call_rollout_fn
from slime.rollout.sample_hooks import set_current_rollout_id
from slime.utils.misc import load_function

try:
    import ray

    remote = ray.remote
except ImportError:

    def remote(cls):
        """Leave the class as it is."""
        return cls


@remote
class RolloutManager:
    """Run rollouts and convert their results into training data."""

    def __init__(self, args, pg):
        self.args = args
        self.data_source = load_function(args.data_source_path)(args)
        self.generate_rollout = load_function(args.rollout_function_path)
        self.eval_generate_rollout = load_function(args.eval_function_path)

    def generate(self, rollout_id):
        """Return the training data of a step."""
        set_current_rollout_id(rollout_id)
        data, _ = self._get_rollout_data(rollout_id=rollout_id)
        data = self._convert_samples_to_train_data(data)
        return self._split_train_data_by_dp(data)

    def eval(self, rollout_id):
        """Return the rewards of an evaluation."""
        set_current_rollout_id(rollout_id)
        args = (self.args, rollout_id, self.data_source)
        return call_rollout_fn(self.eval_generate_rollout, *args, evaluation=True).data

    def offload(self):
        """Offload the engines."""

    def onload(self, tags=None):
        """Load the engines again."""

    def onload_weights(self):
        """Load their weights again."""

    def onload_kv(self):
        """Allocate their cache again."""

    def recover_updatable_engines(self):
        """Restart dead engines."""

    def _get_rollout_data(self, rollout_id):
        output = call_rollout_fn(
            self.generate_rollout, self.args, rollout_id, self.data_source, evaluation=False
        )
        data = output.samples
        while isinstance(data[0], list):
            data = [sample for group in data for sample in group]
        return data, output.metrics

    def _convert_samples_to_train_data(self, samples):
        return {
            "tokens": [sample.tokens for sample in samples],
            "rewards": [sample.reward for sample in samples],
        }

    def _split_train_data_by_dp(self, data):
        return [data]
