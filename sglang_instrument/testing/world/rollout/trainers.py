"""Play the trainers that roll out whole batches: synchronous, one step off, and one that samples too many.

Source: verl's `RayPPOTrainer.fit`, its `one_step_off_policy` recipe (0.9), slime's `sglang_rollout.py` (0.3).
"""

from random import Random
from typing import TYPE_CHECKING, Final

from sglang_instrument.testing.world.rollout.requests import PlayedRequest
from sglang_instrument.testing.world.rollout.training import (
    is_validated,
    roll_out,
    send_weights,
    train,
    validate,
)
from sglang_instrument.testing.world.serving.clock import Places, Process, Signal, all_of

if TYPE_CHECKING:
    from sglang_instrument.testing.world.stage import Stage

_IDLE_SEC: Final = 0.05  # between two looks at whether the servers are idle


def synchronous(stage: "Stage") -> Process:
    """Roll out, train, send the weights; step after step."""
    clock = stage.clock
    for step in range(1, stage.shape.steps + 1):
        stage.begin_step(step)
        begin = clock.now
        groups = stage.draw(stage.shape.groups, step)
        yield from roll_out(stage, groups, step)
        stage.log_trainer(step, "trainer_generate", begin)
        yield from train(stage, step)
        yield from send_weights(stage, step, step, "idle")
        stage.log_trainer(step, "trainer_step", begin)
        if is_validated(stage, step):
            yield from validate(stage, step)
        yield clock.now + 0.3 + stage.knobs.gap_sec
        stage.end_step(step)


def one_step_off(stage: "Stage") -> Process:
    """Train on the batch that was rolled out while the last one was trained, in a task of its own."""
    clock, shape = stage.clock, stage.shape
    stage.begin_step(1)
    rollout = clock.start(roll_out(stage, stage.draw(shape.groups, 1), 1, task=1))
    for step in range(1, shape.steps + 1):
        if step > 1:
            stage.begin_step(step)
        begin = clock.now
        yield rollout
        requests: list[PlayedRequest] = rollout.value
        groups = sorted({request.group for request in requests})
        extra = {"groups": groups, "count": len(requests), "weight_version": step, "max_staleness": 1}
        stage.log_trainer(step, "samples_consumed", clock.now, **extra)
        yield from send_weights(stage, step, step, "idle")
        stage.log_trainer(step, "trainer_generate", begin)
        if step < shape.steps:
            rollout = clock.start(roll_out(stage, stage.draw(shape.groups, step + 1), step, task=step + 1))
        yield from train(stage, step)
        stage.log_trainer(step, "trainer_step", begin)
        yield clock.now + 0.2 + stage.knobs.gap_sec
        stage.end_step(step)


def oversampling(stage: "Stage") -> Process:
    """Roll out more groups than are needed, keep those that teach something, abort the rest; then train."""
    clock = stage.clock
    for step in range(stage.shape.steps):
        stage.begin_step(step)
        begin = clock.now
        useful = yield from _enough_groups(stage, step)
        stage.log_trainer(step, "samples_consumed", clock.now, groups=useful, weight_version=step)
        stage.log_trainer(step, "trainer_generate", begin)
        yield from train(stage, step)
        yield from send_weights(stage, step, step + 1, "idle")
        stage.log_trainer(step, "trainer_step", begin)
        yield clock.now + 0.3 + stage.knobs.gap_sec
        stage.end_step(step)


def _enough_groups(stage: "Stage", step: int) -> Process:
    """Return the names of the groups that a step keeps."""
    clock, shape, file = stage.clock, stage.shape, f"step_{step}/worker_0"
    begin = clock.now
    if late_sec := stage.knobs.late_sec.get(0, 0.0):
        yield begin + late_sec
    generated = clock.now
    ended: list[tuple[str, bool]] = []
    news = [Signal()]
    places = Places(shape.calls_at_once)
    running: list[PlayedRequest] = []

    def play(size: int) -> None:
        for group in stage.draw(size, step + 1):
            stage.change(group, 0)
            clock.start(_group(stage, group, file, places, running, ended, news))

    submitted = round(shape.groups * shape.oversampling)
    play(submitted)
    while True:
        useful = [name for name, is_kept in ended if is_kept]
        if len(useful) >= shape.groups:
            break
        if submitted - len(ended) + len(useful) < shape.groups:
            submitted += (more := round(shape.groups * shape.oversampling))
            play(more)
        yield news[0]
        news[0] = Signal()
    yield from _abort(stage, file, running, places)
    _log(stage, file, "async_generate_duration", generated, groups=len(ended))
    _log(stage, file, "total_step_duration", begin)
    return useful[: shape.groups]


def _group(
    stage: "Stage",
    plans: list,  # type: ignore[type-arg]
    file: str,
    places: Places,
    running: list[PlayedRequest],
    ended: list[tuple[str, bool]],
    news: list[Signal],
) -> Process:
    clock, worker, begin = stage.clock, stage.workers[0], stage.clock.now
    task = worker.next_task()
    requests = [PlayedRequest(stage, worker, plan, file, task) for plan in plans]
    running += requests
    yield from all_of([clock.start(_placed(request, places)) for request in requests])
    for request in requests:
        running.remove(request)
    name = requests[0].group
    extra = {"group_index": name, "requests": len(requests)}
    stage.records.add(file, "request_group", begin, clock.now, extra, task=task, spawned_by=0)
    if any(request.stopped for request in requests):
        return
    share = stage.shape.filtered_share if stage.knobs.filtered_share is None else stage.knobs.filtered_share
    is_kept = Random(f"{stage.shape.seed}/filter/{name}").random() >= share
    judged = clock.now
    yield judged + 0.001
    reason = {} if is_kept else {"reason": "zero_std"}
    stage.records.add(
        file, "group_filter", judged, clock.now, {"group_index": name, "kept": is_kept, **reason}
    )
    ended.append((name, is_kept))
    news[0].fire()


def _placed(request: PlayedRequest, places: Places) -> Process:
    yield from places.take()
    if not request.stopped:
        yield from request.run()
    places.give_back()


def _abort(stage: "Stage", file: str, running: list[PlayedRequest], places: Places) -> Process:
    """Abort the requests that are left, and wait until the servers have; then for what else these do.

    As slime's `abort`, which tells the servers until they are idle: the table records that wait. The one for
    the requests is no span, so that its time belongs to their tools and rewards.
    """
    begin, clock = stage.clock.now, stage.clock
    left = list(running)
    for request in left:
        request.stopped = True
    calls = [request.call for request in left if request.call is not None]
    waited = clock.now
    while not all(call.done.fired for call in calls):
        for server in stage.servers:
            server.abort(calls)
        yield clock.now + _IDLE_SEC
    _log(stage, file, "abort_wait", waited, servers=len(stage.servers))
    _log(stage, file, "requests_abort", begin, pending=len(left))
    while running:
        yield clock.now + 0.05


def _log(stage: "Stage", file: str, event: str, begin: float, **extra: object) -> None:
    stage.records.add(file, event, begin, stage.clock.now, dict(extra))
