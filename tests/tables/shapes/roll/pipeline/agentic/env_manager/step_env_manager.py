"""The shape of ROLL's loop of an agent whose turns are samples."""

from roll.pipeline.agentic.env_manager.traj_env_manager import TrajEnvManager


class StepEnvManager(TrajEnvManager):
    def format_messages(self, rollout_cache):
        return rollout_cache

    def formulate_rollouts(self, rollout_cache):
        return [rollout_cache]
