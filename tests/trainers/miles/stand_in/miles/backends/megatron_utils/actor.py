"""Stand in for a training worker of Miles."""

from contextlib import contextmanager


@contextmanager
def timer(name):
    """Time a block."""
    yield


class MegatronTrainRayActor:
    """A training worker."""

    role = "actor"
    weight_updater = None

    def train(self, rollout_id, rollout_data_ref, witness_info=None, attempt=0, external_data=None):
        """Train on a batch."""
        with timer("data_preprocess"):
            rollout_data = dict(rollout_data_ref)
        if self.role == "critic":
            return self.train_critic(rollout_id, rollout_data)
        return self.train_actor(rollout_id, rollout_data, witness_info=witness_info, attempt=attempt)

    def train_critic(self, rollout_id, rollout_data):
        """Train the critic."""
        return {}

    def train_actor(self, rollout_id, rollout_data, external_data=None, *, witness_info, attempt):
        """Train the actor."""
        rollout_data.update(self.compute_log_prob([], [], rollout_id=rollout_id, store_prefix="ref_"))
        with timer("actor_train"):
            rollout_data["trained"] = True
        return rollout_data

    def compute_log_prob(self, data_iterator, num_microbatches, rollout_id, store_prefix=""):
        """Compute log probabilities."""
        return {f"{store_prefix}log_probs": []}

    def save_model(self, rollout_id, force_sync=False):
        """Save."""

    def export_hf(self, rollout_id, path):
        """Export."""

    def update_weights(self, info):
        """Send weights to the engines."""
