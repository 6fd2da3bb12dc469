"""Run one worker of the demo: start an engine and its rollout, and process one batch per step.

A trainer needs only one call for this package: `install()`, in `main`.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import sglang_instrument
from sglang_instrument.demo.cpu_platform import collect_rarely
from sglang_instrument.demo.options import DemoOptions, WorkerOrder
from sglang_instrument.demo.problems import SYSTEM, DemoProblem, draw

if TYPE_CHECKING:
    from sglang_instrument.demo.batch import DataProto
    from sglang_instrument.demo.faults import Fault
    from sglang_instrument.demo.rollout import DemoRollout

_WRITTEN_SEC: Final = (
    1.0  # time for the engine's processes to write their last records before they are killed
)


def main(order: WorkerOrder) -> None:
    """Run all steps, report each request, and leave the results in the scratch folder."""
    if order.run.install:
        sglang_instrument.install()

    reports = _Reports(order.report_fd)
    engine, rollout, fault = _start(order, reports)
    reports.send(event="ready")
    _wait_for_workers()
    results = []
    for step, validate in _plan(order.run):
        fault.begin_step(0 if validate else step)
        problems = draw(
            order.run.requests, seed=order.run.seed, step=step, worker=order.rank, validate=validate
        )
        done = rollout.generate_sequences(_prompts(problems, step=step, validate=validate))
        results.append(_result(step, validate, problems, done))
        outcome = {key: results[-1][key] for key in ("step", "validate", "tokens", "reward")}
        reports.send(event="step", **outcome)
    Path(order.scratch, "results.json").write_text(json.dumps(results))
    time.sleep(_WRITTEN_SEC)
    engine.shutdown()
    reports.send(event="done")


class _Reports:
    """Send reports to the parent, one JSON object per line."""

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)  # else the engine's processes would keep the pipe open
        self._pipe = os.fdopen(descriptor, "w", buffering=1)
        threading.Thread(target=_end_with_parent, args=(descriptor,), daemon=True).start()

    def send(self, **message: Any) -> None:
        self._pipe.write(json.dumps(message) + "\n")

    def request_done(self) -> None:
        self.send(event="request")


def _end_with_parent(descriptor: int) -> None:
    """Kill this worker and its engine when the parent closes the pipe or dies."""
    pipe = select.poll()
    pipe.register(descriptor, 0)  # no event: poll() returns only for errors, such as a closed read end
    pipe.poll()
    os.killpg(os.getpid(), signal.SIGKILL)


def _start(order: WorkerOrder, reports: _Reports) -> tuple[Any, DemoRollout, Fault]:
    collect_rarely()
    import torch.distributed as dist
    from transformers import AutoTokenizer

    from sglang_instrument.demo.calculator import Calculator
    from sglang_instrument.demo.engine import start_engine
    from sglang_instrument.demo.faults import Fault
    from sglang_instrument.demo.interaction import Verifier
    from sglang_instrument.demo.rollout import DemoRollout, RolloutConfig

    rendezvous = Path(order.scratch).with_name("meeting").as_uri()  # a file, because a port could be in use
    dist.init_process_group("gloo", init_method=rendezvous, rank=order.rank, world_size=order.run.workers)
    limits = {"max_model_len": 1024, "response_length": order.run.max_tokens}
    engine = start_engine(
        Path(order.model),
        rank=order.rank,
        context_length=limits["max_model_len"],
        scratch=Path(order.scratch),
    )
    fault = Fault(
        tuple(order.run.inject), worker=order.rank, workers=order.run.workers, steps=order.run.steps
    )
    rollout = DemoRollout(
        engine,
        AutoTokenizer.from_pretrained(order.model),
        [Calculator(fault)],
        {"verifier": Verifier()},
        RolloutConfig(**limits),
        reports.request_done,
    )
    return engine, rollout, fault


def _wait_for_workers() -> None:
    """Let all workers begin the first step together, as trainers do."""
    import torch.distributed as dist

    dist.barrier()


def _plan(run: DemoOptions) -> Iterator[tuple[int, bool]]:
    """Yield (step, is a validation): all training steps, then a validation if the options ask for it."""
    yield from ((step, False) for step in range(1, run.steps + 1))
    if run.validate:
        yield run.steps, True


def _prompts(problems: list[DemoProblem], *, step: int, validate: bool) -> DataProto:
    from sglang_instrument.demo.batch import DataProto

    return DataProto(
        non_tensor_batch={
            "raw_prompt": [
                [{"role": "system", "content": SYSTEM}, {"role": "user", "content": problem.question}]
                for problem in problems
            ],
            "tools_kwargs": [{"calculator": {"expected": problem.answer}} for problem in problems],
            "interaction_kwargs": [{"name": "verifier", "expected": problem.answer} for problem in problems],
        },
        meta_info={"global_steps": step, "validate": validate, "do_sample": False},
    )


def _result(step: int, validate: bool, problems: list[DemoProblem], done: DataProto) -> dict[str, Any]:
    """Return a step's outcome without times and ids, so that equal runs give equal outcomes."""
    masks = done.batch["response_mask"].bool()
    rewards = done.non_tensor_batch["reward_scores"]
    return {
        "step": step,
        "validate": validate,
        "tokens": int(masks.sum()),
        "reward": sum(reward["calculator"] for reward in rewards) / len(rewards),
        "requests": [
            {"question": problem.question, "response_ids": ids[mask].tolist(), "rewards": reward}
            for problem, ids, mask, reward in zip(
                problems, done.batch["responses"], masks, rewards, strict=True
            )
        ],
    }


if __name__ == "__main__":
    order = json.loads(sys.argv[1])
    main(WorkerOrder(**{**order, "run": DemoOptions(**order["run"])}))
