"""Write traces into MLflow, and metrics, with verl's own functions: `verl_writes.py URI`."""

import asyncio
import os
import sys

os.environ["MLFLOW_TRACKING_URI"] = sys.argv[1]

import mlflow
from verl.utils.rollout_trace import RolloutTraceConfig, rollout_trace_attr, rollout_trace_op
from verl.utils.tracking import FileLogger
from verl.workers.rollout.replica import TokenOutput


class Client:
    @rollout_trace_op
    async def generate(self, request_id, *, prompt_ids, sampling_params):
        await asyncio.sleep(0.02)
        return TokenOutput(
            token_ids=list(range(len(prompt_ids) * 2)), stop_reason="completed", num_preempted=0
        )


class Calculator:
    @rollout_trace_op
    async def execute(self, instance_id, parameters):
        await asyncio.sleep(0.01)
        return '"token_ids": [1, 2, 3, 4, 5]', 0.0, {}


class Loop:
    @rollout_trace_op
    async def run(self, sampling_params, number):
        client = Client()
        given = f'x"prompt_ids": [1, 2{number}'
        await client.generate(given, prompt_ids=[1, 2, 3], sampling_params={})
        await Calculator().execute("i", {})
        await client.generate(given, prompt_ids=[1, 2, 3, 4], sampling_params={})


async def sample(step, number):
    with rollout_trace_attr(
        step=step, sample_index=number, rollout_n=0, validate=step == 2, name="agent_loop"
    ):
        await Loop().run({}, number)


async def main():
    RolloutTraceConfig.init("project", "experiment", "mlflow")
    for step in (1, 2):
        await asyncio.gather(*(sample(step, number) for number in range(3)))


asyncio.run(main())
mlflow.flush_trace_async_logging()
logger = FileLogger("project", "experiment")
for step in (1, 2):
    logger.log(
        {"timing_s/gen": 2.0, "timing_s/update_actor": 1.0, "timing_s/step": 3.5, "a": float("nan")}, step
    )
logger.finish()
