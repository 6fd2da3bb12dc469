"""The shape of ROLL's workers."""


class ActorWorker:
    def train_step(self, data):
        return data


class RewardWorker:
    def compute_rewards(self, data):
        return data
