"""The shape of ROLL's loop of an agent that sees pictures: most of the methods are its own."""

from roll.pipeline.agentic.env_manager.traj_env_manager import TrajEnvManager


class VLTrajEnvManager(TrajEnvManager):
    def step(self, llm_output):
        return self.rollout_cache

    def make_decision(self, rollout_cache):
        lm_input, messages = self.format_messages(rollout_cache)
        if lm_input is None:
            return None
        lm_output = self.llm_proxy.generate(messages=messages, lm_input=lm_input, generation_config={})
        return lm_output

    def format_messages(self, history):
        return history, []

    def formulate_rollouts(self, rollout_cache):
        return rollout_cache
