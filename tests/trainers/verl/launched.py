"""Drive rollouts in workers that verl's own RayWorkerGroup starts, as its trainer does.

launched.py MODEL STEPS NODES [actor_rollout_ref.model.external_lib=MODULE]; NODES: workers of each, as "1,1".
Ray is started, or found, by `ray.init()`.
"""

import sys

import ray
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, register
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup

EXTERNAL = "actor_rollout_ref.model.external_lib="


@ray.remote
class RolloutWorker(Worker):
    """A worker with only verl's rollout: no actor, no reference model."""

    def __init__(self, model, external_lib):
        super().__init__()
        from verl.utils.import_utils import import_external_libs

        import_external_libs(external_lib)  # as HFModelConfig does with model.external_lib
        import rollout
        import user_classes

        user_classes.Calculator.takes_sec = user_classes.Teacher.takes_sec = 0
        rollout.join_group()
        self.rollout, self.batch = rollout.build(model), rollout.batch

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def generate(self, step):
        return len(self.rollout.generate_sequences(self.batch(self.rollout, step=step)))


def main(model, steps, nodes, *overrides):
    """Run a number of steps, and end as a driver does: Ray kills the workers."""
    [external_lib] = [
        override.removeprefix(EXTERNAL) for override in overrides if override.startswith(EXTERNAL)
    ] or [None]
    ray.init()
    pool = RayResourcePool(
        [int(workers) for workers in nodes.split(",")], use_gpu=False, max_colocate_count=1
    )
    made = RayClassWithInitArgs(RolloutWorker, model=model, external_lib=external_lib)
    group = RayWorkerGroup(pool, made, device_name="cpu")
    for step in range(1, int(steps) + 1):
        print("step", step, group.generate(step), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
