"""Functions and methods that Ray sends by value record in workers that import nothing of ours."""

import pytest
from logged import recorded_events

pytest.importorskip("ray", reason="Ray is not installed here; tests/environments/ray.sh makes a place for it")

DRIVER = """
import pathlib, time, ray
import sglang_instrument as si
from sglang_instrument import instrument, span

si.install()
folder = pathlib.Path(si.status()["folder"])

@ray.remote
@instrument("score", phase="reward")
def score(number):
    return float(number)

class Judge:
    @instrument("judged", phase="reward")
    def judge(self, number):
        return number

    @instrument("judged", phase="reward")
    async def wait(self, number):
        return number

ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
ray.get([score.remote(number) for number in range(10)])
judges = [ray.remote(num_cpus=0)(Judge).remote() for _ in range(2)]
methods = [getattr(judge, name) for judge in judges for name in ("judge", "wait")]
ray.get([method.remote(number) for method in methods for number in range(10)])
# Ray's kill may lose the last records, as any SIGKILL may: wait until they are on disk.
deadline = time.monotonic() + 60
while sum(path.read_text().count('"duration_sec"') for path in folder.rglob("*.jsonl")) < 50:
    assert time.monotonic() < deadline
    time.sleep(0.05)
"""


@pytest.mark.parametrize("has_source", [True, False])
def test_decorated_tasks_and_methods_of_actors_lose_no_record(run_script, tmp_path, has_source):
    (tmp_path / "driver.py").write_text(DRIVER)
    words = ["driver.py"] if has_source else ["-c", DRIVER]
    script = run_script(f"import os, sys; os.execv(sys.executable, [sys.executable, *{words!r}])")
    events = [record["event"] for file in script.records.values() for record in recorded_events(file)]
    assert (events.count("score"), events.count("judged")) == (10, 40)
