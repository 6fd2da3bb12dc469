"""Write sessions and traces with AReaL's own tracers: `areal_writes.py FOLDER`."""

import asyncio
import sys

from areal.api.cli_args import PerfTracerConfig, SessionTracerConfig
from areal.utils import perf_tracer

STEPS, SESSIONS = 3, 4


async def session(task, number):
    perf_tracer.set_task_id(task)
    perf_tracer.register_task(task)
    tracer = perf_tracer.get_session_tracer()
    session_id = tracer.register_session(task)
    for phase, sec in (("generate", 0.02), ("toolcall", 0.01), ("generate", 0.03), ("reward", 0.01)):
        perf_tracer.trace_session_event(f"mark_{phase}_start", session_id=session_id)
        await asyncio.sleep(sec * (1 + number))
        perf_tracer.trace_session_event(f"mark_{phase}_end", session_id=session_id)
    perf_tracer.trace_session_event("mark_finalized", task_id=task, status="accepted")


async def main(folder):
    sessions = SessionTracerConfig(enabled=True, flush_threshold=1)
    config = PerfTracerConfig(
        experiment_name="e", trial_name="t", fileroot=folder, enabled=True, session_tracer=sessions
    )
    perf_tracer.configure(config, rank=0, role="master")
    for step in range(STEPS):
        with perf_tracer.trace_scope("train.rollout", category="compute", args={"global_step": step}):
            await asyncio.gather(*(session(step * SESSIONS + n, n) for n in range(SESSIONS)))
        with perf_tracer.trace_scope("train.ppo_update", category="compute", args={"global_step": step}):
            await asyncio.sleep(0.05)
    perf_tracer.save(force=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
