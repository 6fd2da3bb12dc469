"""Ray kills actors without a word: what was on disk before is whole, and belongs to one run."""

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

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    actors = [ray.remote(num_cpus=1)(Rollout).remote(rank) for rank in range(2)]
    for number in (1, 2, 3):
        processes = ray.get([actor.run.remote(number) for actor in actors])
    # A kill may cost what was recorded in the last moments, as any SIGKILL may: wait until it is on disk.
    written = lambda: [path for path in folder.rglob("worker_*.jsonl") if "step_closed" in path.read_text()]
    while len(written()) < 6:
        time.sleep(0.01)
    ENDING
"""


@pytest.mark.parametrize("ending", ["pass", "[ray.kill(actor) for actor in actors]", "raise SystemExit(0)"])
def test_actors_that_are_left_alive_when_their_driver_ends_lose_no_step(start_script, ending):
    script = start_script(DRIVER.replace("ENDING", ending))
    script.wait(timeout=120)
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
