"""Functions that come to a process by value record there: nothing of ours is imported by their own code."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from logged import recorded_events

ROOT = Path(__file__).parents[2]
#: The content of our `.pth` file, in case it is not installed for this interpreter.
HOOK = (ROOT / "sglang_instrument.pth").read_text()

WORK = """
from sglang_instrument import instrument, span

@instrument("score", phase="reward")
def score(number):
    return float(number)

@instrument("judged", phase="reward", fields={"number": "number"})
async def judge(number):
    return number

def judged(number):
    import asyncio
    return asyncio.run(judge(number))

class Judge:
    @instrument("judged by a method", phase="reward")
    def judge(self, number):
        return number

method = Judge.judge  # as Ray takes the methods of actors

def traced(number):
    return method(Judge(), number)

def timed(number):
    with span("timed"):
        return number
"""
CHILD = """
import pickle, sys
work = pickle.loads(sys.stdin.buffer.read())
print([work(number) for number in range(5)])
"""


@pytest.fixture
def sent(run_script):
    """Run a function of WORK in a child that gets it by value; return the records and what it printed."""

    def send(name, child=CHILD):
        return run_script(
            f"""
            import subprocess, sys
            import cloudpickle
            import sglang_instrument
            exec({WORK!r})
            sglang_instrument.install()
            child = [sys.executable, "-c", {HOOK + child!r}]
            done = subprocess.run(child, input=cloudpickle.dumps({name}), capture_output=True)
            print(done.stdout.decode(), done.stderr.decode())
            """
        )

    return send


@pytest.mark.parametrize(
    ("name", "event"),
    [("score", "score"), ("judged", "judged"), ("traced", "judged by a method"), ("timed", "timed")],
)
def test_a_function_that_is_unpickled_installs_where_the_switch_is_on(sent, name, event):
    script = sent(name)
    records = [record for file in script.records.values() for record in recorded_events(file)]
    assert [record["event"] for record in records] == [event] * 5, script.stdout


@pytest.mark.parametrize(("name", "event"), [("judged", "judged"), ("traced", "judged by a method")])
def test_what_a_notebook_defines_records_where_it_is_sent(run_script, name, event):
    pytest.importorskip("IPython")
    script = run_script(
        f"""
        import subprocess, sys
        import cloudpickle
        from IPython.core.interactiveshell import InteractiveShell
        import sglang_instrument
        shell = InteractiveShell.instance()
        assert shell.run_cell({WORK!r}).success
        sglang_instrument.install()
        child = [sys.executable, "-c", {HOOK + CHILD!r}]
        sent = cloudpickle.dumps(shell.user_ns[{name!r}])
        done = subprocess.run(child, input=sent, capture_output=True)
        print(done.stdout.decode(), done.stderr.decode())
        """
    )
    records = [record for file in script.records.values() for record in recorded_events(file)]
    assert [record["event"] for record in records] == [event] * 5, script.stdout


def test_the_module_that_installs_is_loaded_once(sent):
    script = sent(
        "score",
        CHILD
        + """
import importlib
for name, module in list(sys.modules.items()):
    if name.startswith("sglang_instrument") and "._" not in name:  # compiled modules are loaded by ours
        assert importlib.import_module(name) is module
        assert module.__spec__.name == name and module.__spec__.loader is module.__loader__, name
        parent, _, child = name.rpartition(".")
        assert not parent or getattr(sys.modules[parent], child) is module, name
assert not [finder for finder in sys.meta_path if "Trigger" in repr(finder)]
""",
    )
    assert "[0.0, 1.0, 2.0, 3.0, 4.0]" in script.stdout
    assert "Error" not in script.stdout, script.stdout


@pytest.mark.parametrize("name", ["instrument", "span", "step", "SGLangLogManager"])
def test_the_first_name_that_a_program_imports_installs_whole(start_script, tmp_path, name):
    script = start_script(
        f"""
        {HOOK}
        from sglang_instrument import {name}
        import sglang_instrument
        assert sglang_instrument.installed()
        assert sglang_instrument.{name} is {name}
        """,
        file=tmp_path / "main.py",
        SGLANG_INSTRUMENT="1",
    ).wait()
    assert "failed" not in script.stderr


def test_a_decorated_lambda_of_a_module_that_goes_by_value_records(run_script, tmp_path):
    (tmp_path / "helpers.py").write_text(
        "from sglang_instrument import instrument\n"
        'halved = instrument("halved")(lambda number: number / 2)\n'
        'halved.__name__ = halved.__qualname__ = "halved"\n'
    )
    script = run_script(
        f"""
        import os, subprocess, sys
        sys.path.insert(0, os.getcwd())
        import cloudpickle, helpers, pickle
        import sglang_instrument
        assert pickle.loads(pickle.dumps(helpers.halved)) is helpers.halved
        assert cloudpickle.loads(cloudpickle.dumps(helpers.halved)) is helpers.halved
        cloudpickle.register_pickle_by_value(helpers)
        sent = cloudpickle.dumps(helpers.halved)
        os.remove("helpers.py")
        sglang_instrument.install()
        child = [sys.executable, "-c", {HOOK + CHILD!r}]
        done = subprocess.run(child, input=sent, capture_output=True)
        print(done.stdout.decode(), done.stderr.decode())
        """
    )
    records = [record for file in script.records.values() for record in recorded_events(file)]
    assert [record["event"] for record in records] == ["halved"] * 5, script.stdout


def test_without_the_switch_such_a_function_runs_and_nothing_is_installed(run_script):
    script = run_script(
        f"""
        {HOOK}
        import pickle, sys
        import cloudpickle
        exec({WORK!r})
        work = cloudpickle.loads(cloudpickle.dumps(score))
        assert work(3) == 3.0
        assert "sglang_instrument.startup.session" not in sys.modules
        """
    )
    assert not script.folder.exists()


def test_a_command_that_reads_logs_does_not_install(tmp_path):
    switch = {"SGLANG_INSTRUMENT": "1", "SGLANG_INSTRUMENT_LOG_DIR": str(tmp_path / "logs")}
    environment = {**os.environ, **switch}
    program = f"""{HOOK}
import sys
from sglang_instrument.cli.main import main
assert main(["patches", "list"]) == 0
assert "sglang_instrument.startup.session" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert not (tmp_path / "logs").exists()


BY_VALUE = {
    "loky": """
        from loky import get_reusable_executor
        with get_reusable_executor(max_workers=2) as pool:
            assert sum(pool.map(WORK, range(20))) == 190
    """,
    "joblib": """
        from joblib import Parallel, delayed
        assert sum(Parallel(n_jobs=2)(delayed(WORK)(number) for number in range(20))) == 190
    """,
    "dask": """
        import dask
        tasks = [dask.delayed(WORK)(number) for number in range(20)]
        assert sum(dask.compute(*tasks, scheduler="processes", num_workers=2)) == 190
    """,
}


@pytest.mark.parametrize("name", ["score", "timed"])
@pytest.mark.parametrize("package", list(BY_VALUE))
def test_packages_that_send_functions_by_value_lose_no_record(run_script, tmp_path, package, name):
    pytest.importorskip(package)
    (tmp_path / "main.py").write_text(
        WORK
        + f"""
if __name__ == "__main__":
    import sglang_instrument
    sglang_instrument.install()
    {textwrap.indent(textwrap.dedent(BY_VALUE[package]), "    ").strip().replace("WORK", name)}
    import pathlib, time
    folder = pathlib.Path(sglang_instrument.status()["folder"])
    ends = time.monotonic() + 600
    while time.monotonic() < ends:  # these packages end their processes with a signal
        if sum(path.read_text().count('"event":"{name}"') for path in folder.rglob("*.jsonl")) >= 20:
            break
        time.sleep(0.02)
"""
    )
    script = run_script("import os, sys; os.execv(sys.executable, [sys.executable, 'main.py'])")
    records = [record for file in script.records.values() for record in recorded_events(file)]
    assert [record["event"] for record in records] == [name] * 20
