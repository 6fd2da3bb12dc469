"""Play a trainer that never waits for a whole batch: groups stream from the workers through a queue to it.

Source: verl's `fully_async_policy` (0.9): the rollouter makes at most `staleness_threshold` of a batch ahead,
and counts anew with each update of the weights; requests that new weights cut off go on
under them (`partial_rollout`).
"""

from random import Random
from typing import TYPE_CHECKING, Any

from sglang_instrument.testing.world.rollout.knobs import Knobs
from sglang_instrument.testing.world.rollout.requests import PlayedRequest
from sglang_instrument.testing.world.rollout.training import send_weights, train
from sglang_instrument.testing.world.serving.clock import Process, Signal, all_of

if TYPE_CHECKING:
    from sglang_instrument.testing.world.stage import Stage


class Rollouter:
    """What streams groups to the workers, and from them into the queue.

    Attributes:
        queue: The groups that wait for the trainer.
        made: Groups that were begun since the last update, those in flight and in the queue then included.
    """

    def __init__(self, stage: "Stage") -> None:
        self.stage = stage
        self.queue: list[list[PlayedRequest]] = []
        self.active = self.made = 0
        self.news, self.more = Signal(), Signal()
        self._long_in: Knobs | None = None

    def run(self) -> Process:
        """Begin a group wherever there is room for one."""
        stage, shape, turn = self.stage, self.stage.shape, 0
        while True:
            ahead = stage.knobs.ahead_groups
            most = shape.groups + (shape.ahead_groups if ahead is None else ahead)
            if self.active >= shape.active_groups or self.made >= most:
                yield self.more
                self.more = Signal()
                continue
            self.active += 1
            self.made += 1
            stage.clock.start(self._group(turn % shape.workers))
            turn += 1

    def count_anew(self) -> None:
        """Count the groups that are ahead of the trainer, after an update."""
        self.made = self.active + len(self.queue)
        self.more.fire()

    def _group(self, rank: int) -> Process:
        stage, clock = self.stage, self.stage.clock
        worker, version = stage.workers[rank], stage.seen_version.get(rank, 0)
        file = f"step_{version}/worker_{rank}"
        (plans,) = stage.draw(1, version)
        stage.change(plans, rank)
        if stage.knobs.long_reply and not self._is_long():
            plans[-1].turns[-1].tokens = stage.knobs.long_reply
        begin = clock.now
        if late_sec := stage.knobs.late_sec.get(rank, 0.0):
            yield clock.now + late_sec
        for offset, sec in stage.knobs.blocked.pop(rank, ()):
            worker.block(clock.now + offset, clock.now + offset + sec, file)
        task = worker.next_task()
        requests = [PlayedRequest(stage, worker, plan, file, task) for plan in plans]
        yield from all_of([clock.start(request.run()) for request in requests])
        name = requests[0].group
        extra: dict[str, Any] = {"group": name, "batch_size": len(requests)}
        stage.records.add(file, "request_group", begin, clock.now, extra, task=task, spawned_by=0)
        self.active -= 1
        self._put(name, requests)
        self.more.fire()

    def _is_long(self) -> bool:
        """Return whether this step has its long reply."""
        was, self._long_in = self._long_in, self.stage.knobs
        return was is self.stage.knobs

    def _put(self, name: str, requests: list[PlayedRequest]) -> None:
        stage, now = self.stage, self.stage.clock.now
        knob = stage.knobs.filtered_share
        share = stage.shape.filtered_share if knob is None else knob
        step = max(request.version for request in requests)
        if Random(f"{stage.shape.seed}/filter/{name}").random() < share:
            self.made -= 1
            dropped = {"groups": [name], "count": len(requests), "reason": "filtered"}
            stage.records.add(f"step_{step}/rollouter_0", "samples_dropped", now, now, dropped, instant=True)
            return
        put = {"group": name, "batch_size": len(requests)}
        stage.records.add(f"step_{step}/rollouter_0", "queue_put", now - 0.001, now, put)
        self.queue.append(requests)
        self.news.fire()


def asynchronous(stage: "Stage") -> Process:
    """Train on each batch of groups that is in the queue; send weights after each step."""
    clock, shape = stage.clock, stage.shape
    rollouter = Rollouter(stage)
    for step in range(shape.steps):
        stage.begin_step(step)
        rollouter.more.fire()
        if step == 0:
            clock.start(rollouter.run())
        begin = clock.now
        while len(rollouter.queue) < shape.groups:
            yield rollouter.news
            rollouter.news = Signal()
        taken, rollouter.queue = rollouter.queue[: shape.groups], rollouter.queue[shape.groups :]
        stage.log_trainer(step, "trainer_generate", begin)
        extra = {
            "groups": [group[0].group for group in taken],
            "count": sum(map(len, taken)),
            "weight_version": step,
        }
        stage.log_trainer(step, "samples_consumed", clock.now, **extra, **shape.staleness)
        yield from train(stage, step)
        yield from send_weights(stage, step, step + 1, "abort" if shape.resumes else "drain")
        rollouter.count_anew()
        stage.log_trainer(step, "trainer_step", begin)
        yield clock.now + 0.05 + stage.knobs.gap_sec
        stage.end_step(step)
