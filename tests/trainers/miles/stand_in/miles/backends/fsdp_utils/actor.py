"""Stand in for a training worker of Miles' FSDP backend."""

from contextlib import contextmanager


@contextmanager
def timer(name):
    """Time a block."""
    yield


def get_rollout_data(args, rollout_data_ref, witness_info=None):
    """Fetch a batch."""
    return dict(rollout_data_ref)


def compute_advantages_and_returns(args, rollout_data):
    """Compute advantages."""


class FSDPTrainRayActor:
    """A training worker."""

    args = None

    def train(self, rollout_id, rollout_data_ref, witness_info=None, attempt=0):
        """Train on a batch."""
        rollout_data = get_rollout_data(self.args, rollout_data_ref, witness_info=None)
        self._train_core(rollout_id=rollout_id, rollout_data=rollout_data)

    def _train_core(self, rollout_id, rollout_data):
        ref_results = self._compute_log_prob("ref")
        rollout_data.update(ref_results)
        actor_results = self._compute_log_prob("actor")
        rollout_data.update(actor_results)
        compute_advantages_and_returns(self.args, rollout_data)
        with timer("actor_train"):
            rollout_data["trained"] = True

    def _compute_log_prob(self, model_tag):
        return {}

    def save_model(self, rollout_id, force_sync=False):
        """Save."""

    def update_weights(self, info):
        """Send weights to the engines."""
