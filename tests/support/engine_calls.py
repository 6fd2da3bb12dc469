"""Call one real SGLang engine in every way that tests read, in the folder in which this is started.

Step 1 has calls with and without a `traceparent`; step 2 requests that end early; step 3 is profiled. At the
end, `looks.json` says how patched functions look. Where it logs is in the environment.
"""

import asyncio
import functools
import importlib
import inspect
import json
import multiprocessing.reduction
import pickle
import time
import warnings
from pathlib import Path

TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
LONG = {"max_new_tokens": 480, "temperature": 0, "ignore_eos": True}
PROFILED = {"max_new_tokens": 6, "temperature": 0, "ignore_eos": True}
WRITTEN_SEC = 600  # only a machine that hangs takes so long


class Rollout:
    """A trainer's rollout over an engine: the profiler finds the engine here."""

    def __init__(self, engine, folder):
        self.engine, self.folder = engine, folder

    def traced(self):
        """Call the engine with a header, without one, and for a stream with one."""
        call = {"input_ids": [5, 6, 7, 8], "sampling_params": {"max_new_tokens": 4, "temperature": 0}}
        header = {"traceparent": TRACEPARENT}
        self.engine.generate(**call, external_trace_header=header)
        self.engine.generate(**call)
        list(self.engine.generate(**call, stream=True, external_trace_header=header))
        return 3

    async def ending_early(self, earlier):
        """Let a request be answered, two be cancelled, and one fail; the engine makes each `rid`."""
        answered = {**LONG, "max_new_tokens": 2}
        await self.engine.async_generate(input_ids=[300, 301], sampling_params=answered)
        await self._cancelled(earlier + 2)
        await self._cancelled(earlier + 3, stream=True)
        try:
            await self.engine.async_generate(input_ids=[300] * 600, sampling_params=LONG)
            raise SystemExit("600 tokens fit into a context of 512")
        except ValueError:
            pass

    async def _cancelled(self, number, **how):
        async def consume():
            reply = await self.engine.async_generate(input_ids=[300, 301], sampling_params=LONG, **how)
            if how:
                async for _ in reply:
                    pass

        task = asyncio.create_task(consume())
        while self._begun() < number:  # until the scheduler has logged this request, too
            await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    def _begun(self):
        path = self.folder / "engine/scheduler_0_tp0.jsonl"
        return path.read_text().count('"scheduler_first_tokens"') if path.exists() else 0

    def generate_sequences(self, number):
        """Run a step that the setting `profile_steps` names."""
        from sglang_instrument import span, step

        with step(number), span("total_step_duration"):
            self.engine.loop.run_until_complete(self._profiled())
        self.engine.loop.run_until_complete(written(self.folder, "profiles/**/*.trace.json.gz"))

    async def _profiled(self):
        await written(self.folder, "profiles/*.json")  # the profiler records
        await self.engine.async_generate(input_ids=[300, 301], sampling_params=PROFILED)


async def written(folder, pattern):
    """Wait for a file."""
    until = time.monotonic() + WRITTEN_SEC
    while not list(folder.glob(pattern)):
        if time.monotonic() > until:
            raise SystemExit(f"no {pattern}")
        await asyncio.sleep(0.05)


def generate_all(engine, folder):
    """Make all calls, each kind in a step of its own."""
    from sglang_instrument import span, step

    rollout = Rollout(engine, folder)
    with step(1), span("total_step_duration"):
        earlier = rollout.traced()
    with step(2), span("total_step_duration"):
        engine.loop.run_until_complete(rollout.ending_early(earlier))
    rollout.generate_sequences(3)


def function_at(target):
    """Return the function of a patch's target, "module:path"."""
    module, _, path = target.partition(":")
    return functools.reduce(getattr, path.split("."), importlib.import_module(module))


def looks(function):
    """Return what others see of a function; it must be picklable as the target of a spawned process."""
    kinds = inspect.iscoroutinefunction, inspect.isasyncgenfunction, inspect.isgeneratorfunction
    multiprocessing.reduction.ForkingPickler.dumps(function)
    return [
        str(inspect.signature(function)),
        [kind(function) for kind in kinds],
        [function.__module__, function.__qualname__, function.__doc__, str(function.__defaults__)],
        pickle.loads(pickle.dumps(function)) is function,
    ]


def code_of(target):
    """Return the code of a target's own function, below its decorators."""
    return inspect.unwrap(function_at(target)).__code__


def look_at_what_is_patched():
    """Return how patched functions look during an install, how after it, and whether their code is back."""
    import sglang.srt.entrypoints.http_server  # noqa: F401 - it imports the rest

    import sglang_instrument

    sglang_instrument.install(engine_detail="batches", profile_steps="")
    patches = [
        patch for patch in sglang_instrument.status()["patches"] if patch["table"].startswith("sglang/")
    ]
    targets = sorted({patch["target"] for patch in patches if patch["state"] == "found"})
    during = {target: looks(function_at(target)) for target in targets}
    codes = list(map(code_of, targets))
    sglang_instrument.uninstall()
    after = {target: looks(function_at(target)) for target in targets}
    restored = [now is not then for now, then in zip(map(code_of, targets), codes, strict=True)]
    return [during, after, restored]


def main():
    """Start the engine, make all calls, and end it."""
    warnings.simplefilter("ignore")
    import sglang_instrument

    sglang_instrument.install()
    folder = Path(sglang_instrument.status()["folder"])
    from sglang_instrument.demo.engine import start_engine
    from sglang_instrument.demo.model import ensure_model

    model = ensure_model(Path.home() / ".cache/sglang-instrument")
    engine = start_engine(model, rank=0, context_length=512, scratch=Path.cwd())
    generate_all(engine, folder)
    sglang_instrument.uninstall()
    engine.shutdown()
    Path("looks.json").write_text(json.dumps(look_at_what_is_patched()))


if __name__ == "__main__":
    main()
