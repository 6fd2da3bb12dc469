"""The shape of ROLL's loop of an agent that speaks the environment's own format."""

from roll.pipeline.agentic.env_manager.traj_env_manager import TrajEnvManager


class AgentNativeStepEnvManager(TrajEnvManager):
    def reset(self):
        return self.rollout_cache

    def step(self, llm_output):
        return self.rollout_cache

    def make_decision(self, rollout_cache):
        lm_input = self.format_messages(rollout_cache)
        lm_output = self.llm_proxy.generate(messages=[], lm_input=lm_input, generation_config={})
        return lm_output

    def format_messages(self, rollout_cache):
        return rollout_cache

    def formulate_rollouts(self, rollout_cache):
        return [rollout_cache]
