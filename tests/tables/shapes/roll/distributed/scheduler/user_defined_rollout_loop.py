"""The shape of ROLL's rollout of a prompt."""

import asyncio


class UserDefinedRolloutLoop:
    async def process_new_prompt(self, context):
        requests, domain = context.get_request_data(meta_info=context.meta_info)
        return await asyncio.gather(
            *[self._generate_and_reward_impl(context, req, domain) for req in requests]
        )

    async def _generate_and_reward_impl(self, context, req, domain):
        responses = []
        for _ in range(5):
            while True:
                data = await context.generate(req=req, domain=domain)
                if data is None:
                    return
                break
            rewards = await context.compute_rewards(req=req, domain=domain)
            responses.append(rewards)
        return responses
