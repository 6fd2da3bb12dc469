"""Methods of Ray actors are measured once and keep their kind, however the class becomes an actor."""

import json
from collections import Counter

import pytest

pytest.importorskip("ray", reason="Ray is not installed here; tests/environments/ray.sh makes a place for it")

#: A trainer's module with all ways in which classes of verl and slime become actors.
TRAINER = """
import asyncio
import ray

def pad(n):
    return n

class Base:
    def __init__(self):
        self.started = True

    def inherited(self, n):
        return pad(n) + 1

    async def inherited_async(self, n):
        await asyncio.sleep(0)
        return n + 2

class Plain(Base):
    def own(self, n):
        return pad(n) + 3

    async def own_async(self, n):
        await asyncio.sleep(0)
        return n + 4

@ray.remote
class Decorated(Base):
    def own(self, n):
        return pad(n) + 3

    async def own_async(self, n):
        await asyncio.sleep(0)
        return n + 4

@ray.remote
class Shell(Plain):
    pass
"""
METHODS = ("inherited", "inherited_async", "own", "own_async")
OWNERS = [("Base", METHODS[:2]), ("Plain", METHODS[2:]), ("Decorated", METHODS[2:])]
TABLE = """
trainer = "mine"
package = "mine"
module = "planted_trainer"
[[patch]]
target = "pad"
region = [{ event = "pad" }]
[[patch]]
target = "Base.__init__"
region = [{ event = "start", process = { role = "'worker'" } }]
""" + "".join(
    f'[[patch]]\ntarget = "{owner}.{name}"\nregion = [{{ event = "{owner}.{name}", exit = {{ n = "n" }} }}]\n'
    for owner, names in OWNERS
    for name in names
)
DRIVER = """
    import json, os, pathlib, time
    import ray
    BEFORE
    import planted_trainer

    def look(actor):
        import inspect
        methods = [getattr(type(actor), name) for name in METHODS]
        arguments = [list(inspect.signature(one).parameters)[:2] for one in methods]
        return [*zip(arguments, map(inspect.iscoroutinefunction, methods))]

    ray.init(address="local", num_cpus=3, include_dashboard=False, log_to_driver=False)
    kinds = ray.remote(planted_trainer.Plain), planted_trainer.Decorated, planted_trainer.Shell
    actors = [kind.options(name=f"worker_{rank}").remote() for rank, kind in enumerate(kinds)]
    results = [ray.get([getattr(actor, name).remote(1) for name in METHODS]) for actor in actors]
    print(json.dumps([results, [ray.get(actor.__ray_call__.remote(look)) for actor in actors]]))
    folder = pathlib.Path(os.environ["SGLANG_INSTRUMENT_LOG_DIR"]) / "run"
    ends = time.monotonic() + 600
    text = lambda: "".join(path.read_text() for path in folder.rglob("worker_*.jsonl"))
    while sum('"task":' in line and "event_loop" not in line for line in text().splitlines()) < EXPECTED:
        assert time.monotonic() < ends, "Ray kills its actors: what they recorded has to be on disk before"
        time.sleep(0.05)
"""
#: Each method is called once; two of them call the function `pad`.
CALLS = {"start": 1, "pad": 2, "Base.inherited": 1, "Base.inherited_async": 1}
OF_PLAIN = {**CALLS, "Plain.own": 1, "Plain.own_async": 1}
OF_DECORATED = {**CALLS, "Decorated.own": 1, "Decorated.own_async": 1}


@pytest.mark.parametrize(
    ("before", "recorded"),
    [
        ("pass", [{}, {}, {}]),
        ("import sglang_instrument; sglang_instrument.install()", [OF_PLAIN, OF_DECORATED, OF_PLAIN]),
        # The methods of a decorated class are pickled as they are when the actor is created.
        ('os.environ["SGLANG_INSTRUMENT"] = "1"', [OF_PLAIN, CALLS, OF_PLAIN]),
    ],
    ids=["nowhere", "driver and workers", "workers alone"],
)
def test_methods_of_actors_are_measured_once_and_stay_what_they_were(
    start_script, tmp_path, before, recorded
):
    (tmp_path / "planted_trainer.py").write_text(TRAINER)
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables/mine.toml").write_text(TABLE)
    expected = sum(sum(counts.values()) for counts in recorded)
    source = DRIVER.replace("BEFORE", before).replace("METHODS", repr(METHODS))
    script = start_script(
        source.replace("EXPECTED", str(expected)),
        RAY_AUTH_MODE="disabled",
        PYTHONPATH=str(tmp_path),
        SGLANG_INSTRUMENT_PATCHES=str(tmp_path / "tables"),
    ).wait(timeout=600)
    results, looks = json.loads(next(line for line in script.stdout.splitlines() if line.startswith("[[")))
    assert results == [[2, 3, 4, 5]] * 3
    assert looks == [[[["self", "n"], name.endswith("async")] for name in METHODS]] * 3
    counted = [Counter() for _ in recorded]
    for records in script.records.values():
        for record in records:
            if "task" in record and not record["event"].startswith("event_loop"):
                counted[record["workid"]][record["event"]] += 1
    assert counted == recorded
