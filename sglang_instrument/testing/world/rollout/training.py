"""Play what all trainers do: hand prompts to workers, train, send weights, validate."""

from random import Random
from typing import TYPE_CHECKING, Final

from sglang_instrument.testing.world.rollout.plans import RequestPlan
from sglang_instrument.testing.world.rollout.requests import PlayedRequest
from sglang_instrument.testing.world.serving.clock import Process, Signal, all_of

if TYPE_CHECKING:
    from sglang_instrument.testing.world.stage import Stage

#: The phases of a step after the rollout, and their shares of the seconds of training.
PHASES: Final = {
    "trainer_old_log_prob": 0.17,
    "trainer_ref_log_prob": 0.14,
    "trainer_advantage": 0.01,
    "trainer_update_actor": 0.68,
}


def split(groups: list[list[RequestPlan]], workers: int) -> list[list[RequestPlan]]:
    """Return the requests of each worker: a batch is cut into equal pieces, in its order."""
    plans = [plan for group in groups for plan in group]
    size = -(-len(plans) // workers)
    return [plans[rank * size : (rank + 1) * size] for rank in range(workers)]


def roll_out(
    stage: "Stage", groups: list[list[RequestPlan]], step: int, folder: str = "step", task: int = 0
) -> Process:
    """Play a batch on all workers; return its requests. A trainer that goes on meanwhile gives it a task."""
    begin = stage.clock.now
    running: list[Signal] = []
    for worker, plans in zip(stage.workers, split(groups, stage.shape.workers), strict=True):
        stage.change(plans, worker.rank)
        _lengthen(stage, plans, worker.rank)
        running.append(stage.clock.start(worker.step(plans, f"{folder}_{step}/worker_{worker.rank}")))
    yield from all_of(running)
    if not stage.shape.has_own_engines:
        extra = {"batch_size": sum(map(len, groups)), "workers": stage.shape.workers}
        lane = {"task": task, "spawned_by": 0} if task else {}
        stage.records.add(f"{folder}_{step}/trainer_0", "rollout", begin, stage.clock.now, extra, **lane)
    requests: list[PlayedRequest] = [request for done in running for request in done.value]
    return requests


def _lengthen(stage: "Stage", plans: list[RequestPlan], rank: int) -> None:
    """Make one reply of the batch long, if the knobs say so: the last one of the first worker."""
    if stage.knobs.long_reply and plans and rank == 0:
        plans[-1].turns[-1].tokens = min(stage.knobs.long_reply, stage.shape.work.max_new_tokens)


def train(stage: "Stage", step: int) -> Process:
    """Train on a batch: its reward where the whole batch has one, and the phases of training."""
    shape, knobs, clock = stage.shape, stage.knobs, stage.clock
    random = Random(f"{shape.seed}/train/{step}")
    if not shape.scores_alone:
        begin = clock.now
        yield begin + shape.reward_batch_sec * random.uniform(0.9, 1.1) + knobs.reward_batch_sec
        stage.log_trainer(step, "trainer_reward", begin)
    sec = shape.train_sec * random.uniform(1 - shape.train_jitter, 1 + shape.train_jitter)
    for event, share in PHASES.items():
        begin = clock.now
        yield begin + share * sec + knobs.phase_sec.get(event, 0.0)
        stage.log_trainer(step, event, begin)
    every = shape.checkpoint_every
    saved = shape.checkpoint_sec if every and step % every == 0 else 0.0
    saved += knobs.phase_sec.get("trainer_save_checkpoint", 0.0)
    if saved:
        begin = clock.now
        yield begin + saved
        stage.log_trainer(step, "trainer_save_checkpoint", begin)


def send_weights(stage: "Stage", step: int, version: int, how: str) -> Process:
    """Send new weights to all servers, and wait until each has them."""
    begin, clock, more = stage.clock.now, stage.clock, stage.knobs.transfer_sec
    sec = stage.shape.transfer_sec
    updates = [
        server.update(version, sec + more.get(server.number, 0.0) + more.get(None, 0.0), how=how)
        for server in stage.servers
    ]
    yield from all_of([clock.start(update) for update in updates])
    stage.log_trainer(step, "weights_update", begin, how="checkpoint_engine", weight_version=version)


def validate(stage: "Stage", step: int) -> Process:
    """Play a validation, which has requests of its own."""
    begin = stage.clock.now
    count = round(stage.shape.validation_groups * stage.knobs.validate_factor)
    groups = [[group[0]] for group in stage.draw(count, 0)]
    for index, (plan,) in enumerate(groups):
        plan.index = index
    knobs, stage.knobs = stage.knobs, type(stage.knobs)()
    yield from roll_out(stage, groups, step, "validate")
    stage.knobs = knobs
    stage.records.add(f"validate_{step}/trainer_0", "trainer_validate", begin, stage.clock.now, {})


def is_validated(stage: "Stage", step: int) -> bool:
    """Return whether a step ends with a validation."""
    every = stage.shape.validate_every
    return bool(every) and step % every == 0
