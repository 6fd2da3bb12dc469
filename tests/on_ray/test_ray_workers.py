"""A driver's install() reaches Ray's workers with any runtime_env, and `doctor --ray` checks their nodes."""

import json
import shutil
import subprocess
import sys
from itertools import takewhile
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="Ray is not installed here; tests/environments/ray.sh makes a place for it")

#: A worker that imports a package called slime: a stand-in for the trainer, with one function for our table.
DRIVER = """
    import json, os, pathlib, sys, time
    sys.path.insert(0, os.environ["TRAINER"])
    import ray
    BEFORE

    @ray.remote
    class Rollout:
        def run(self, step):
            IN_WORKER
            import slime.rollout
            slime.rollout.generate(step)
            names = ("SGLANG_INSTRUMENT", "SGLANG_INSTRUMENT_RUN_ID", "SGLANG_INSTRUMENT_LOG_DIR", "THEIRS")
            return os.getpid(), os.getcwd(), {name: os.environ.get(name) for name in names}

        async def coroutine(self, step):
            return step

    INIT
    actors = [Rollout.options(name=f"rollout_worker_{rank}").remote() for rank in (3, 4)]
    print(json.dumps(ray.get([actor.run.remote(1) for actor in actors])))
    # Ray's kill may lose the last records, as any SIGKILL may: wait until they are on disk.
    folder = pathlib.Path(os.environ["SGLANG_INSTRUMENT_LOG_DIR"]) / "run"
    written = lambda: [path for path in folder.rglob("worker_*.jsonl") if "step_closed" in path.read_text()]
    while len(written()) < EXPECTED:
        time.sleep(0.05)
"""
# Never a cluster that is there.
OPTIONS = "address='local', num_cpus=2, include_dashboard=False, log_to_driver=False"


@pytest.fixture
def trainer(tmp_path):
    folder = tmp_path / "trainer"
    (folder / "slime").mkdir(parents=True)
    (folder / "slime/__init__.py").write_text("")
    (folder / "slime/rollout.py").write_text("def generate(step):\n    return step\n")
    tables = tmp_path / "tables"
    tables.mkdir()
    (tables / "mine.toml").write_text(
        """
        trainer = "mine"
        package = "mine"
        module = "slime.rollout"
        [[patch]]
        target = "generate"
        [[patch.region]]
        event = "total_step_duration"
        process = { role = "'worker'" }
        bind = { step = "step" }
        """
    )
    return {"TRAINER": str(folder), "PYTHONPATH": str(folder), "SGLANG_INSTRUMENT_PATCHES": str(tables)}


def drive(start_script, trainer, before, init, expected=2, in_worker="pass", **environment):
    source = (
        DRIVER.replace("IN_WORKER", in_worker)
        .replace("BEFORE", before)
        .replace("INIT", init)
        .replace("EXPECTED", str(expected))
    )
    script = start_script(source, RAY_AUTH_MODE="disabled", **trainer, **environment).wait(timeout=600)
    workers = json.loads(next(line for line in script.stdout.splitlines() if line.startswith("[[")))
    return script, workers


INSTALL = "import sglang_instrument; sglang_instrument.install()"


@pytest.mark.parametrize(
    ("before", "init", "switch"),
    [
        (INSTALL, f"ray.init({OPTIONS})", {}),
        (INSTALL, f'ray.init({OPTIONS}, runtime_env={{"env_vars": {{"THEIRS": "1"}}}})', {}),
        # The driver imports no target: the hook installs when it calls ray.init().
        ("pass", f"ray.init({OPTIONS})", {"SGLANG_INSTRUMENT": "1"}),
    ],
    ids=["install", "install with a runtime_env", "the switch alone"],
)
def test_workers_join_the_run_of_their_driver(start_script, trainer, before, init, switch):
    script, workers = drive(start_script, trainer, before, init, **switch)
    # Ranks come from the names of the actors.
    assert set(script.records) == {"step_1/worker_3.jsonl", "step_1/worker_4.jsonl"}
    opened = [records[0]["extra"] for records in script.records.values()]
    assert {opening["run_id"] for opening in opened} == {workers[0][2]["SGLANG_INSTRUMENT_RUN_ID"]}
    assert {opening["pid"] for opening in opened} == {pid for pid, _, _ in workers}
    assert {seen["THEIRS"] for _, _, seen in workers} == {"1" if "THEIRS" in init else None}
    assert script.stderr.count("sglang_instrument 0.") == 1  # the driver prints the line, its workers do not


def test_workers_of_a_driver_without_the_switch_are_left_alone(start_script, trainer):
    script, workers = drive(start_script, trainer, "pass", f"ray.init({OPTIONS})", expected=0)
    assert not script.folder.exists()
    assert [seen["SGLANG_INSTRUMENT"] for _, _, seen in workers] == [None, None]


def test_workers_that_are_reached_without_their_driver_share_the_run_of_their_job(start_script, trainer):
    # As by verl's `model.external_lib`: the workers import the module, the driver does not.
    auto = "import sglang_instrument.auto"
    script, _ = drive(start_script, trainer, "pass", f"ray.init({OPTIONS})", in_worker=auto)
    opened = [records[0]["extra"] for records in script.records.values()]
    assert len(opened) == 2
    [run_id] = {opening["run_id"] for opening in opened}
    assert run_id.startswith("ray-20")


def test_workers_in_a_package_cache_of_rays_write_where_their_driver_does(start_script, trainer, tmp_path):
    init = f'ray.init({OPTIONS}, runtime_env={{"working_dir": os.environ["TRAINER"]}})'
    script, workers = drive(start_script, trainer, INSTALL, init)
    assert all("_ray_pkg_" in folder for _, folder, _ in workers)
    assert set(script.records) == {"step_1/worker_3.jsonl", "step_1/worker_4.jsonl"}


#: Actors of three Pythons: one without this package, one with it, and the driver's.
PYTHONS = """
    import json, os
    import ray
    import sglang_instrument
    sglang_instrument.install()

    @ray.remote(num_cpus=0)
    class Rollout:
        def run(self):
            import sys
            return sys.executable, "sglang_instrument" in sys.modules

    ray.init(OPTIONS)
    pythons = [os.environ[name] for name in ("BARE", "BARE", "WITH")]
    others = [{"py_executable": python, "env_vars": {"PYTHONPATH": ""}} for python in pythons]
    actors = [Rollout.options(runtime_env=other).remote() for other in others]
    print(json.dumps(ray.get([actor.run.remote() for actor in (*actors, Rollout.remote())])))
    # The driver prints what workers publish: a last sign shows that all of it has arrived.
    from ray._private import utils, worker
    here = worker.global_worker
    utils.publish_error_to_driver("last", "last sign", gcs_client=here.gcs_client, job_id=here.current_job_id)
    input()
"""


def python_of(folder, *paths):
    """Make a virtual environment whose packages are in these folders; return its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = folder.glob("lib/python3*/site-packages")
    (packages / "paths.pth").write_text("".join(f"{path}\n" for path in paths))
    return folder / "bin/python"


@pytest.fixture
def pythons(tmp_path):
    """Two Pythons with this one's Ray: one without this package, one with it and its start-up hook."""
    import ray

    import sglang_instrument

    packages = Path(ray.__file__).parents[1]
    root = Path(sglang_instrument.__file__).parents[1]
    bare = python_of(tmp_path / "bare", packages)
    complete = python_of(tmp_path / "complete", packages, root)
    (site_packages,) = complete.parents[1].glob("lib/python3*/site-packages")
    shutil.copy(root / "sglang_instrument.pth", site_packages / "sglang_instrument.pth")
    importing = [bare, "-c", "import sglang_instrument"]
    imported = subprocess.run(importing, env={}, cwd=tmp_path, capture_output=True)
    assert imported.returncode, "the tests need an editable installation"
    return bare, complete


def test_the_driver_says_once_which_python_of_its_actors_lacks_this_package(start_script, pythons):
    bare, complete = pythons
    script = start_script(
        PYTHONS.replace("OPTIONS", OPTIONS), RAY_AUTH_MODE="disabled", BARE=str(bare), WITH=str(complete)
    )
    lines = list(takewhile(lambda line: "last sign" not in line, script.process.stdout))
    script.tell("end")
    script.wait(timeout=600)
    assert [json.loads(line) for line in lines if line.startswith("[[")] == [
        [[str(bare), False], [str(bare), False], [str(complete), True], [sys.executable, True]]
    ]
    (said,) = [line for line in lines if "lack this package" in line]
    assert f"sglang_instrument: Ray workers of {bare} lack this package" in said
    assert f"{bare} -m pip install ." in said or f"uv pip install --python {bare} ." in said
    (path,) = script.folder.glob("processes/reached/*.json")
    (notice,) = json.loads(path.read_text())["notices"]
    assert notice["notice"] in said


def test_uninstall_gives_ray_init_back_and_keeps_its_signature(start_script, trainer):
    script = start_script(
        """
        import inspect, ray
        before, signature = ray.init, inspect.signature(ray.init)
        import sglang_instrument
        sglang_instrument.install()
        assert ray.init is not before and inspect.signature(ray.init) == signature
        assert ray.cloudpickle.loads(ray.cloudpickle.dumps(ray.init)) is ray.init
        sglang_instrument.uninstall()
        assert ray.init is ray._private.worker.init is before
        print(sglang_instrument.status()["notices"])
        """,
    )
    assert script.wait(timeout=600).stdout == "[]\n"  # nothing prevented uninstall, so there is no notice


def test_install_after_ray_init_reports_that_workers_record_nothing(start_script, trainer):
    script = start_script(
        f"""
        import ray
        ray.init({OPTIONS})
        import sglang_instrument
        sglang_instrument.install()
        print([one["notice"] for one in sglang_instrument.status()["notices"]])
        """,
        RAY_AUTH_MODE="disabled",
    )
    assert "Ray was initialised before install()" in script.wait(timeout=600).stdout


@pytest.fixture(scope="module")
def cluster():
    """Two Ray nodes on this machine."""
    from ray.cluster_utils import Cluster

    started = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    started.add_node(num_cpus=1)
    yield started
    started.shutdown()


def doctor(cluster, *arguments):
    command = [sys.executable, "-m", "sglang_instrument.cli.main", "doctor", "--json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode in (0, 1), done.stderr
    return [row for row in json.loads(done.stdout) if row["about"].startswith("node ")]


def test_doctor_looks_at_each_node_of_a_cluster(cluster, tmp_path):
    nodes = doctor(cluster, "--ray", cluster.address, "--log-dir", str(tmp_path))
    assert len({node["about"] for node in nodes}) == 2
    for node in nodes:
        assert node["ok"], node
        assert f"{tmp_path} is shared and writable" in node["found"]
        assert f"({sys.executable}) on " in node["found"]
    assert list(tmp_path.iterdir()) == []


#: Actors that stay: one in a Python without this package, one with it, one that names a command.
STAYING = """
    import os
    import ray

    @ray.remote(num_cpus=0)
    class Engine:
        def run(self):
            return 1

    ray.init(os.environ["CLUSTER"], log_to_driver=False)
    pythons = [os.environ["BARE"], os.environ["COMPLETE"], "env " + os.environ["BARE"]]
    actors = [Engine.options(runtime_env={"py_executable": python}).remote() for python in pythons]
    assert ray.get([actor.run.remote() for actor in actors]) == [1, 1, 1]
    print("ready", flush=True)
    input()
"""


def test_doctor_looks_into_each_python_of_the_actors_that_run(cluster, start_script, pythons, tmp_path):
    bare, complete = pythons
    environment = {"CLUSTER": cluster.address, "BARE": str(bare), "COMPLETE": str(complete)}
    script = start_script(STAYING, RAY_AUTH_MODE="disabled", **environment)
    script.says("ready")
    rows = doctor(cluster, "--ray", cluster.address, "--log-dir", str(tmp_path / "logs"))
    texts = {row["found"].partition(" (Engine) in ")[2]: row for row in rows if "Engine" in row["found"]}
    by_python = {text.partition(":")[0]: row for text, row in texts.items()}
    assert {python: row["ok"] for python, row in by_python.items()} == {
        str(bare): False,
        str(complete): True,
        f"env {bare}": None,
    }
    assert f"{bare} -m pip install .` in a checkout on that node" in by_python[str(bare)]["todo"]
    script.tell("end")
    script.wait(timeout=600)
