"""Ray kills actors without notice: the files that they wrote before are complete and belong to one run."""

import time

import pytest

pytest.importorskip("ray", reason="Ray is not installed here; tests/environments/ray.sh makes a place for it")

DRIVER = """
    import os, pathlib, sys, time, ray
    import sglang_instrument as si

    si.install()
    folder = pathlib.Path(si.status()["folder"])

    class Rollout:
        def __init__(self, rank):
            os.environ["RANK"] = str(rank)
            si.install()

        def run(self, number):
            with si.step(number), si.span("total_step_duration"):
                for index in range(100):
                    with si.bind(request_id=f"r{index}"), si.span("async_rollout_request_complete"):
                        si.event("did", index=index)
            return os.getpid()

    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    actors = [ray.remote(num_cpus=1)(Rollout).remote(rank) for rank in range(2)]
    for number in (1, 2, 3):
        processes = ray.get([actor.run.remote(number) for actor in actors])
    # Ray's kill may lose the last records, as any SIGKILL may: wait until they are on disk.
    written = lambda: [path for path in folder.rglob("worker_*.jsonl") if "step_closed" in path.read_text()]
    while len(written()) < 6:
        time.sleep(0.01)
    ENDING
"""


@pytest.mark.parametrize("ending", ["pass", "[ray.kill(actor) for actor in actors]", "raise SystemExit(0)"])
def test_actors_that_are_left_alive_when_their_driver_ends_lose_no_step(start_script, ending):
    script = start_script(DRIVER.replace("ENDING", ending))
    script.wait(timeout=600)
    files = script.records
    assert set(files) == {f"step_{number}/worker_{rank}.jsonl" for number in (1, 2, 3) for rank in (0, 1)}
    opened = [record for records in files.values() for record in records if record["event"] == "log_opened"]
    assert len({record["extra"]["run_id"] for record in opened}) == 1
    assert len({record["extra"]["pid"] for record in opened}) == 2
    for records in files.values():
        events = [record["event"] for record in records]
        assert events.count("did") == events.count("async_rollout_request_complete") == 100
        (closed,) = [record for record in records if record["event"] == "step_closed"]
        assert closed["extra"] == {"written": 201, "dropped": 0, "sampled_out": 0}


DEATH = """
    import json, os, pathlib, signal, time, ray
    import sglang_instrument as si

    si.install()
    folder = pathlib.Path(si.status()["folder"])

    class Barrier:
        def __init__(self):
            self.arrived = 0

        async def wait(self, everyone):
            import asyncio

            self.arrived += 1
            while self.arrived < everyone:
                await asyncio.sleep(0.01)

    class Rollout:
        def __init__(self, rank, barrier):
            os.environ["RANK"] = str(rank)
            si.install()
            self.rank, self.barrier = rank, barrier

        def run(self, number, hangs_at=None):
            with si.step(number), si.span("total_step_duration"):
                for index in range(8):
                    request = f"{number}-{self.rank}-{index}"
                    with si.bind(request_id=request), si.span("async_rollout_request_complete"):
                        self.reply(index == hangs_at)
                with si.span("barrier_wait_duration"):
                    ray.get(self.barrier.wait.remote(2 * number))
            return os.getpid()

        def reply(self, hangs):
            for turn in range(2):
                with si.bind(turn=turn), si.span("turn_engine_call"):
                    time.sleep(3600 if hangs and turn else 0.01)

    def done(rank):
        # Whole lines, by their event: after two seconds `open_now` names the request that hangs.
        path = folder / f"step_3/worker_{rank}.jsonl"
        *lines, _ = path.read_bytes().split(b"\\n") if path.exists() else [b""]
        return [json.loads(line)["event"] for line in lines].count("async_rollout_request_complete")

    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    barrier = ray.remote(num_cpus=0)(Barrier).remote()
    actors = [ray.remote(num_cpus=1)(Rollout).remote(rank, barrier) for rank in range(2)]
    for number in (1, 2):
        processes = ray.get([actor.run.remote(number) for actor in actors])
    running = [actors[0].run.remote(3), actors[1].run.remote(3, hangs_at=3)]
    while [done(0), done(1)] != [8, 3]:
        time.sleep(0.01)
    os.kill(processes[1], signal.SIGKILL)
    try:
        ray.get(running)
    except ray.exceptions.RayActorError:
        raise SystemExit(1)
"""


def test_of_two_actors_the_one_that_is_killed_in_the_middle_of_a_step_is_named(start_script):
    from sglang_instrument.analysis import open_run
    from sglang_instrument.analysis.verdict.verdict import verdict_of

    script = start_script(DEATH)
    script.wait(code=1, timeout=600)
    deadline = time.monotonic() + 600
    while not (run := open_run(script.folder)).is_over:  # the other actor ends with its driver
        assert time.monotonic() < deadline
        time.sleep(0.1)
    # More may follow: the first step begins late where the machine is busy.
    assert verdict_of(run).startswith(
        "step 3: worker 1 was the only one with requests left when the run ended: "
        "it had completed 3 requests, the others 8"
    )
