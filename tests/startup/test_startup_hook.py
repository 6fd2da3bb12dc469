"""One switch reaches every process of a launch, and all join one run; no other process is reached."""

import os
import pickle
import pickletools
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from logged import recorded_events

from sglang_instrument import launchers
from sglang_instrument.cli.commands.run import interpreter_of
from sglang_instrument.cli.main import main
from sglang_instrument.recording.measure import ray_actor
from sglang_instrument.startup import python_startup, run_ids
from sglang_instrument.startup.ray_workers import with_hello, with_settings

ROOT = Path(__file__).parents[2]


@pytest.fixture
def trainer(tmp_path):
    """A package called slime: a stand-in for the trainer, with one function that our table patches."""
    package = tmp_path / "slime"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "rollout.py").write_text("def generate(step):\n    return step\n")
    tables = tmp_path / "tables"
    tables.mkdir()
    (tables / "mine.toml").write_text(
        'trainer = "mine"\npackage = "mine"\nmodule = "slime.rollout"\n[[patch]]\ntarget = "generate"\n'
        'region = [{ event = "total_step_duration", bind = { step = "step" } }]\n'
    )
    return {
        "SGLANG_INSTRUMENT_PATCHES": str(tables),
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]),
    }


#: The content of our `.pth` file, in case it is not installed for this interpreter.
HOOK = (ROOT / "sglang_instrument.pth").read_text()


def test_the_switch_reaches_a_process_that_imports_a_target_and_its_children(run_script, trainer):
    child = "import slime.rollout; slime.rollout.generate(2)"
    script = run_script(
        f"""
        {HOOK}
        import subprocess, sys
        import slime.rollout
        slime.rollout.generate(1)
        subprocess.run([sys.executable, "-c", {HOOK + child!r}], check=True)
        """,
        SGLANG_INSTRUMENT="1",
        **trainer,
    )
    opened = [r["extra"] for rs in script.records.values() for r in rs if r["event"] == "log_opened"]
    assert len({opening["pid"] for opening in opened}) == 2
    assert len({opening["run_id"] for opening in opened}) == 1
    assert script.stderr.count("sglang_instrument 0.") == 1  # printed by the first process only


def test_a_target_that_is_no_package_is_patched_at_the_import_that_wakes_the_hook(
    run_script, tmp_path, trainer
):
    (tmp_path / "mine.py").write_text("def generate(step):\n    return step\n")
    (tmp_path / "ray.py").write_text("def init(): pass\ndef is_initialized(): return False\n")
    table = tmp_path / "tables/mine.toml"
    table.write_text(table.read_text().replace("slime.rollout", "mine"))
    script = run_script(
        f"""
        {HOOK}
        import ray  # as in its workers: a stand-in for it
        import mine
        assert mine.__spec__.loader is mine.__loader__
        mine.generate(1)
        """,
        SGLANG_INSTRUMENT="1",
        **trainer,
    )
    assert [r["event"] for r in script.records["step_1/worker_0.jsonl"]].count("total_step_duration") == 1


def test_the_hook_waits_for_the_packages_of_tables_of_ones_own(tmp_path, monkeypatch):
    (tmp_path / "deeper").mkdir()
    (tmp_path / "one.toml").write_text(
        """module = 'mine.rollout'
        [[patch]]
        target = [
          "Rollout.run",
          "theirs.deep.module:Rollout.run",
        ]
        region = [{ event = "x", exit = { a = "b[1:2]", c = 'd ? "e" : "f"' } }]
        """
    )
    (tmp_path / "deeper/two.toml").write_text('patch = [{ module="third", target="f", region=[] }]')
    (tmp_path / "deeper/broken.toml").write_bytes(b'module = "\xff')
    (tmp_path / "deeper/none.txt").write_text('module = "fourth"')
    monkeypatch.setenv("SGLANG_INSTRUMENT_PATCHES", os.pathsep.join([str(tmp_path), str(tmp_path / "gone")]))
    assert python_startup._packages_of_own_tables() == {"mine", "theirs", "third"}


def test_a_program_that_names_events_of_its_own_needs_no_trainer_to_be_reached(run_script):
    source = f"""
        {HOOK}
        import sglang_instrument
        assert not sglang_instrument.installed(), "who only asks records nothing"
        from sglang_instrument import span, step
        with step(3), span("parse"):
            pass
        print(sglang_instrument.installed())
    """
    script = run_script(source, SGLANG_INSTRUMENT="1")
    assert script.stdout == "True\n"
    assert [record["event"] for record in recorded_events(script.records["step_3/worker_0.jsonl"])] == [
        "parse"
    ]
    assert run_script(source, SGLANG_INSTRUMENT="").stdout == "False\n"


def test_install_in_a_driver_is_the_switch_of_its_children(run_script, trainer):
    child = "import slime.rollout; slime.rollout.generate(2)"
    script = run_script(
        f"""
        import os, subprocess, sys
        import sglang_instrument
        before = dict(os.environ)
        sglang_instrument.install()
        subprocess.run([sys.executable, "-c", {HOOK + child!r}], check=True)
        sglang_instrument.uninstall()
        assert dict(os.environ) == before
        """,
        **trainer,
    )
    assert list(script.records) == ["step_2/worker_0.jsonl"]


@pytest.mark.parametrize("value", ["", "0", "off", "false", "no"])
def test_without_the_switch_no_plugin_and_no_hook_does_anything(run_script, trainer, value):
    script = run_script(
        """
        import os, sys
        before = list(sys.meta_path), dict(os.environ)
        import slime.rollout
        import sglang_instrument.startup.python_startup
        sglang_instrument.startup.python_startup.start()
        slime.rollout.generate(1)
        assert (list(sys.meta_path), dict(os.environ)) == before
        assert "sglang_instrument.startup.session" not in sys.modules
        """,
        SGLANG_INSTRUMENT=value,
        **trainer,
    )
    assert not script.folder.exists()


def test_a_plugin_that_comes_after_the_target_patches_it_once_with_hook_and_installs_beside_it(
    run_script, trainer
):
    script = run_script(
        """
        import slime.rollout
        import sglang_instrument.startup.python_startup      # verl's plugin: importing it is all
        sglang_instrument.startup.python_startup.start()     # SGLang's
        import sglang_instrument.auto           # VERL_USE_EXTERNAL_MODULES
        sglang_instrument.install()
        slime.rollout.generate(1)
        """,
        SGLANG_INSTRUMENT="1",
        **trainer,
    )
    records = script.records["step_1/worker_0.jsonl"]
    assert [record["event"] for record in records].count("total_step_duration") == 1


@pytest.mark.parametrize(("value", "installed"), [(None, True), ("1", True), ("0", False)])
def test_a_module_that_installs_at_import_obeys_an_explicit_0(run_script, value, installed):
    run_script(
        f"""
        import sglang_instrument.auto
        assert sglang_instrument.installed() is {installed}
        """,
        **({} if value is None else {"SGLANG_INSTRUMENT": value}),
    )


def test_uninstall_overrides_the_hook(run_script, trainer):
    script = run_script(
        f"""
        {HOOK}
        import sglang_instrument
        sglang_instrument.install()
        sglang_instrument.uninstall()
        import slime.rollout
        slime.rollout.generate(1)
        assert not sglang_instrument.installed()
        """,
        SGLANG_INSTRUMENT="1",
        **trainer,
    )
    assert not list(script.folder.rglob("*.jsonl"))


def test_the_entry_points_of_both_plugin_loaders_load_the_hook():
    text = (ROOT / "pyproject.toml").read_text()
    hook = "sglang_instrument.startup.python_startup"
    assert f'[project.entry-points."sglang.srt.plugins"]\nsglang-instrument = "{hook}:start"' in text
    assert f'[project.entry-points."verl.plugins"]\nsglang-instrument = "{hook}"\n' in text


def test_a_worker_in_a_package_cache_of_rays_says_where_its_logs_go(tmp_path):
    cache = tmp_path / "runtime_resources/working_dir_files/_ray_pkg_0123456789abcdef"
    cache.mkdir(parents=True)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SGLANG_INSTRUMENT")}
    program = "import sglang_instrument as si; si.install(); print(si.status()['notices'])"
    for environment, expected in (({}, True), ({"SGLANG_INSTRUMENT_LOG_DIR": str(tmp_path)}, False)):
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=cache,
            env={**clean, **environment},
            capture_output=True,
            text=True,
        )
        assert ("a package cache that Ray deletes" in done.stdout) is expected, done.stderr


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("agent_loop_worker_3", 3),
        ("agent_loop_worker_12_0a9c2e77", 12),
        ("sglang_server_1_0", 1),
        ("reward_loop_worker_7", 7),
        ("trainer", None),
        ("abc123", None),
        (None, None),
    ],
)
def test_the_number_in_an_actors_name_is_its_rank(monkeypatch, name, rank):
    monkeypatch.setattr(ray_actor, "actor_name", lambda: name)
    assert ray_actor.number_in_name() == rank


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("sglang_server_1_0", None),
        ("sglang_server_reward_0_0", "reward"),
        ("sglang_server_teacher_2_0_math", "teacher"),
        ("sglang_server_decode_0_1", "decode"),
        ("server", None),
        (None, None),
    ],
)
def test_the_kind_in_a_servers_name_tells_it_from_another_of_its_number(monkeypatch, name, kind):
    monkeypatch.setattr(ray_actor, "actor_name", lambda: name)
    assert ray_actor.kind_in_name("server") == kind


def test_launchers_name_the_run_before_a_parent_does():
    assert run_ids.new_run_id({run_ids.LAUNCH: "mine"}) == "mine"
    assert run_ids.new_run_id({run_ids.LAUNCH: "mine", "SLURM_JOB_ID": "7"}) == "slurm-7-0-0"
    elastic = {run_ids.LAUNCH: "mine", "TORCHELASTIC_RUN_ID": "e"}
    of_a_node = run_ids.new_run_id({**elastic, launchers.LAUNCHER: "a:1:2"})
    assert of_a_node.startswith("torchrun-e-0-")
    assert of_a_node == run_ids.new_run_id({**elastic, launchers.LAUNCHER: "a:1:2"})
    assert of_a_node != run_ids.new_run_id({**elastic, launchers.LAUNCHER: "b:1:2"})
    assert of_a_node != run_ids.new_run_id(
        {**elastic, launchers.LAUNCHER: "a:1:2", "TORCHELASTIC_RESTART_COUNT": "1"}
    )
    assert run_ids.new_run_id({}) != run_ids.new_run_id({})


def test_settings_are_merged_into_whatever_runtime_environment_the_user_gives():
    ours = {"A": "1", "B": "2"}
    assert with_settings({}, ours, {}) == {"runtime_env": {"env_vars": ours}}
    given = {"num_cpus": 2, "runtime_env": {"working_dir": ".", "env_vars": {"B": "theirs", "C": "3"}}}
    merged = with_settings(given, ours, {})
    assert merged == {
        "num_cpus": 2,
        "runtime_env": {"working_dir": ".", "env_vars": {"A": "1", "B": "theirs", "C": "3"}},
    }
    assert given["runtime_env"]["env_vars"] == {"B": "theirs", "C": "3"}  # the user's settings stay


def test_settings_of_a_submitted_job_are_not_merged_because_ray_refuses_it():
    job = {"RAY_JOB_CONFIG_JSON_ENV_VAR": '{"runtime_env": {"env_vars": {"A": "submitted"}}}'}
    assert with_settings({}, {"A": "1", "B": "2"}, job) == {"runtime_env": {"env_vars": {"B": "2"}}}
    assert with_settings({}, {"A": "1"}, job) == {}
    assert with_settings({}, {"A": "1"}, {"RAY_JOB_CONFIG_JSON_ENV_VAR": "not JSON"}) == {
        "runtime_env": {"env_vars": {"A": "1"}}
    }


def test_workers_get_a_hook_that_unpickles_without_this_package():
    given = {"runtime_env": {"env_vars": {"A": "1"}}}
    hook = with_hello(given, {})["runtime_env"]["worker_process_setup_hook"]
    assert "worker_process_setup_hook" not in given["runtime_env"]  # the user's settings stay
    names = {instruction for _, instruction, _ in pickletools.genops(pickle.dumps(hook))}
    assert "sglang_instrument.startup.ray_hello" not in names
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", "import pickle, sys; pickle.load(sys.stdin.buffer)()"],
        input=pickle.dumps(hook),
        env={"SGLANG_INSTRUMENT": "1"},
        capture_output=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert b"Ray workers of" in done.stderr  # no Ray could tell its driver
    assert b"lack this package" in done.stderr


@pytest.mark.parametrize(
    ("runtime_env", "environment"),
    [
        ({"worker_process_setup_hook": "theirs.hook"}, {}),
        ({"env_vars": {"RAY_WORKER_PROCESS_SETUP_HOOK": "theirs.hook"}}, {}),
        (
            {"env_vars": {"A": "1"}},
            {"RAY_JOB_CONFIG_JSON_ENV_VAR": '{"runtime_env": {"worker_process_setup_hook": "theirs"}}'},
        ),
    ],
)
def test_a_hook_that_is_there_stays_the_only_one(runtime_env, environment):
    assert with_hello({"runtime_env": runtime_env}, environment) == {"runtime_env": runtime_env}


@pytest.fixture
def command(trainer, log_dir, tmp_path):
    """Run `sglang-instrument run ARGUMENTS` in its own process."""

    def call(*arguments, **environment):
        clean = {
            name: value for name, value in os.environ.items() if not name.startswith("SGLANG_INSTRUMENT")
        }
        return subprocess.run(
            [sys.executable, "-m", "sglang_instrument.cli.main", "run", *map(str, arguments)],
            env={**clean, **trainer, **environment},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=600,
        )

    return call


def has_hook():
    return (Path(sysconfig.get_path("purelib")) / "sglang_instrument.pth").exists()


@pytest.mark.skipif(
    not has_hook(), reason="this Python has no start-up hook: pip install --editable . brings it"
)
def test_run_starts_a_command_with_instrumentation_and_leaves_it_its_exit_code(command, log_dir):
    code = "import slime.rollout, sys; slime.rollout.generate(5); sys.exit(7)"
    done = command("--experiment", "mine", "--log-dir", log_dir, "--", sys.executable, "-c", code)
    assert done.returncode == 7, done.stderr
    assert f"records to {log_dir / 'mine'}" in done.stderr
    assert (log_dir / "mine/step_5/worker_0.jsonl").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "run needs a command, as in: sglang-instrument run -- python train.py"),
        (["--", "no-such-program"], "no program 'no-such-program' is on the PATH"),
        (["--set", "detail", "--", sys.executable], "--set 'detail': expected NAME=VALUE"),
        (["--set", "detail=everything", "--", sys.executable], "'everything' is not allowed"),
        (["--set", "form=x", "--", sys.executable], "unknown setting 'form'"),
    ],
)
def test_run_refuses_what_it_cannot_do(capsys, arguments, message):
    assert main(["run", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_run_refuses_a_python_that_it_cannot_reach(command, bare):
    done = command("--", bare, "-c", "pass")
    assert done.returncode == 2
    assert "has no start-up hook of sglang-instrument" in done.stderr


@pytest.fixture
def bare(tmp_path):
    """The Python of a virtual environment without this package."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    return tmp_path / "bare/bin/python"


#: It is looked for every 10 ms in the first second.
WAITING = "import sys, time; time.sleep(3); sys.exit(7)"


def test_the_last_line_says_which_python_a_command_ran_if_it_lacks_this_package(command, bare):
    # `sh` stands for any program that starts a Python of its own; `exec` would make it that Python.
    done = command("--", "sh", "-c", f'{bare} -c "{WAITING}"; exit $?')
    assert done.returncode == 7
    assert done.stderr.splitlines()[-1] == (
        f"sglang-instrument: nothing was recorded: sh ran {bare}, without sglang-instrument: "
        f"run `uv pip install --python {bare} .` in a checkout"
    )


@pytest.mark.skipif(shutil.which("uv") is None, reason="uv is not installed")
def test_the_last_line_says_which_python_uv_ran(command, bare):
    words = ["uv", "run", "--no-project", "--offline", "--python", bare, "python", "-c", WAITING]
    done = command("--", *words)
    assert done.returncode == 7
    assert f"nothing was recorded: uv ran {bare}, without sglang" in done.stderr.splitlines()[-1]


@pytest.mark.skipif(not has_hook(), reason="as above")
def test_a_script_whose_python_lacks_this_package_may_start_another_python(command, log_dir, bare, tmp_path):
    runner = tmp_path / "runner"  # as conda, which runs on the Python of its base
    runner.write_text(f"#!{bare}\nimport subprocess, sys\nsys.exit(subprocess.call(sys.argv[1:]))\n")
    runner.chmod(0o755)
    code = "import slime.rollout; slime.rollout.generate(5)"
    words = ["--experiment", "mine", "--log-dir", log_dir, "--", runner, sys.executable, "-c", code]
    done = command(*words)
    assert done.returncode == 0, done.stderr
    assert f"unless {runner} starts another Python, run `" in done.stderr
    assert "nothing was recorded" not in done.stderr
    assert (log_dir / "mine/step_5/worker_0.jsonl").exists()


@pytest.mark.skipif(not has_hook(), reason="as above")
def test_the_last_line_says_that_a_python_with_this_package_recorded_nothing(command):
    done = command("--", "sh", "-c", f'{sys.executable} -c "{WAITING}"; exit $?')
    assert f"{sys.executable} loaded sglang-instrument, and neither" in done.stderr.splitlines()[-1]


def test_the_python_of_a_script_is_found_by_its_first_line(tmp_path):
    for first, expected in ((f"#!{sys.executable}", sys.executable), ("#!/bin/sh", None), ("no line", None)):
        script = tmp_path / "tool"
        script.write_text(f"{first}\n")
        assert interpreter_of(str(script)) == expected
    assert interpreter_of(sys.executable) == sys.executable
