"""The shape of ROLL's loop of an agent."""


class TrajEnvManager:
    def run_rollout_loop(self, data):
        rollout_cache = self.reset()
        while self.running and rollout_cache is not None:
            lm_output = self.make_decision(rollout_cache)
            rollout_cache = self.step(lm_output)
            if rollout_cache.terminated:
                self.formulate_rollouts(rollout_cache)
                rollout_cache = self.reset()

    def reset(self):
        return self.rollout_cache

    def step(self, llm_output):
        return self.rollout_cache

    def make_decision(self, rollout_cache):
        lm_input = self.format_messages(rollout_cache)
        if lm_input is None:
            return None
        lm_output = self.llm_proxy.generate(messages=[], lm_input=lm_input, generation_config={})
        return lm_output

    def format_messages(self, history):
        return history

    def formulate_rollouts(self, rollout_cache):
        return rollout_cache
