"""`--ray` reads a run on the nodes of a real cluster, and answers to the byte as this machine would."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from sglang_instrument.cli.main import COMMANDS, main, parser_of
from sglang_instrument.testing import SlowEngine, synthetic_run

pytest.importorskip("ray", reason="Ray is not installed here; tests/environments/ray.sh makes a place for it")

PRUNE = ("--keep-steps", "1", "--keep-slowest", "0", "--yes")
QUESTIONS = (
    *(
        "summary",
        "summary --step 2",
        "summary --validate",
        "summary --by week",
        "events",
        "events --step 2 --worker 1",
    ),
    *("requests", "requests --engine", "requests --cdf", "requests --request FIRST", "workers"),
    *("workers --step 2", "turns", "turns --tools", "lengths", "gaps", "check", "compare"),
    *("staleness --groups", "waste", "servers", "servers --step 2", "servers --idle", "weights", "loop"),
    *("whatif --max-tokens 600", "whatif --scale tool_execution=0.5", "advise --no-promise"),
    "forecast --steps 10",
)
#: Questions whose answers are files.
DRAWN = ("report -o out/report.html", "plot -o out/figures")
#: Spaces would end an argument.
ASKED_IN_SQL = (
    'sql select(count(*))n,sum(end_us%1000)e,sum(length(extra))x,count(distinct(file))f,from"spans"',
)
CAN_ASK = importlib.util.find_spec("duckdb") is not None
CAN_DRAW = all(importlib.util.find_spec(name) for name in ("jinja2", "matplotlib", "plotly"))
#: Questions that a run too large for memory answers in pieces.
BY_PERIOD = ("summary --by week", "summary --by day --step 2-3", "summary --by day --validate")
#: Answer all questions in one process: its connection to the cluster takes seconds.
ASKING = """
    import contextlib, hashlib, io, json, os, re, sys, tempfile
    from pathlib import Path
    from sglang_instrument.analysis.executors import batches, on_ray
    from sglang_instrument.analysis.long_runs import pieces
    from sglang_instrument.cli.main import main

    pieces.MOST_FILES, pieces._LEAST_STEPS = FILES
    batches._BATCH_BYTES = MOST
    on_ray._FAN_IN = 2
    def written():
        # Without the time at which a report was made.
        texts = {path.name: path.read_bytes() for path in sorted(Path("out").rglob("*.*"))}
        without = {name: re.sub(rb"[0-9-]+ [0-9:]+ UTC", b"", text) for name, text in texts.items()}
        return {name: hashlib.sha256(text).hexdigest() for name, text in without.items()}

    answers = []
    os.chdir(tempfile.mkdtemp())
    os.mkdir("out")
    for command in COMMANDS:
        printed, said = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(said):
            code = main(command)
        answers.append([command, code, printed.getvalue(), said.getvalue(), written()])
    print(json.dumps(answers))
"""
#: A command that waits after its first batch, so that a node can die in the middle.
WAITING = """
    import json, sys
    from types import SimpleNamespace
    from sglang_instrument.analysis import open_run
    from sglang_instrument.analysis.executors import batches
    from sglang_instrument.cli.select import losses

    batches._BATCH_BYTES = 2**12
    waited = False

    def progress(done, total):
        global waited
        if done and not waited:
            waited = True
            print("begun", flush=True)
            sys.stdin.readline()

    run = open_run("$NODE_DISK/run", progress, cached=False, on=ADDRESS)
    lost = run.executor.lost
    sentences = losses(SimpleNamespace(opened=[run]), tells_health=True)
    said = [sentence for sentence, is_loss in sentences if is_loss]
    print(json.dumps([lost, sorted(run.health.unreadable), said, len(run.requests())]))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run that is long enough for a forecast: five steps are complete."""
    return made(tmp_path_factory.mktemp("run") / "exp", steps=6)


def made(folder, steps):
    synthetic_run(
        folder,
        steps=steps,
        workers=3,
        requests=10,
        validate_every=2,
        engine_clocks={0: 0.0, 1: 0.001, 2: 0.0},
        causes=[SlowEngine(step=2, worker=1, factor=2.0)],
    )
    age(folder)
    return folder


def age(folder):
    """Let a run count as over, as it does once it has been silent for two minutes."""
    for path in folder.rglob("*.jsonl"):
        os.utime(path, (0, 0))


@contextmanager
def cluster_with(disks):
    """Yield a function: `add("a", "b")` adds a node for each disk to a cluster, whose first node has none."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(disks / "home"))
        started = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        started.added = {}

        def add(*names, **variables):
            for name in names:
                variables["NODE_DISK"] = str(disks / name)
                started.added[name] = started.add_node(num_cpus=1, env_vars=dict(variables))
            return started

        yield add
        started.shutdown()


@pytest.fixture
def cluster(tmp_path):
    """A cluster whose nodes a test adds, or kills."""
    with cluster_with(tmp_path) as add:
        yield add


class Shared(NamedTuple):
    """A cluster of three nodes; two have disks "a" and "b" in the folder `disks`."""

    address: str
    disks: Path


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A cluster for tests that only ask; each has a run of its own on the disks."""
    disks = tmp_path_factory.mktemp("disks")
    with cluster_with(disks) as add:
        yield Shared(add("a", "b").address, disks)


def ask(start_script, logs, address=None, other=None, questions=QUESTIONS, files=100_000):
    """Return by question what each command answers: exit code, output, words on stderr, and files so far.

    A run of more than `files` files is read in pieces, where that is possible.
    """
    commands = []
    for question in questions:
        command, *options = question.split()
        runs = [str(logs), str(other or logs)] if command == "compare" else [str(logs)]
        options = [option.replace("FIRST", "2-1-0000") for option in options]
        commands.append([command, *runs, *options, "--json", *(["--ray", address] if address else [])])
    batch_bytes = "2**18" if address else "2**40"  # many batches on the nodes, one here
    code = ASKING.replace("COMMANDS", repr(commands)).replace("= FILES", f"= {files}, 1")
    script = start_script(code.replace("= MOST", f"= {batch_bytes}"), RAY_AUTH_MODE="disabled")
    answers = json.loads(script.wait(timeout=900).stdout.splitlines()[-1])
    return {question: answer[1:] for question, answer in zip(questions, answers, strict=True)}


def test_all_commands_that_read_on_ray_are_asked_here():
    reading = {name for name in COMMANDS if "--ray" in parser_of(name).format_help()}
    asked = {question.split()[0] for question in (*QUESTIONS, *DRAWN, *ASKED_IN_SQL)}
    assert reading - {"collect", "doctor", "export"} == asked


def put(folder, disk, workers):
    for worker in workers:
        for path in folder.glob(f"step_*/worker_{worker}.jsonl"):
            target = disk / "run" / path.relative_to(folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target)


def test_a_killed_node_is_named_with_its_files_and_shared_ones_are_read_elsewhere(
    cluster, start_script, tmp_path
):
    folder = made(tmp_path / "exp", steps=4)
    put(folder, tmp_path / "a", [0, 1])
    put(folder, tmp_path / "b", [1, 2])  # of worker 1, both have a copy
    started = cluster("a", "b")
    script = start_script(WAITING.replace("ADDRESS", repr(started.address)), RAY_AUTH_MODE="disabled")
    script.says("begun")
    started.remove_node(started.added["b"], allow_graceful=False)
    script.tell("go on")
    lost, unreadable, said, requests = json.loads(script.wait(timeout=600).stdout.splitlines()[-1])
    gone = [f"step_{step}/worker_2.jsonl" for step in range(1, 5)]
    ((name, files),) = lost.items()
    assert (files, unreadable, requests) == (gone, gone, 80)
    assert said == [f"node {name} died: its 4 files are missing: {', '.join(gone)}"]
    # A node that joins late is asked by the next command.
    asked = [sys.executable, "-m", "sglang_instrument.cli.main", "requests", "$NODE_DISK/run", "--json"]
    asked += ["--ray", started.address, "--limit", "1000"]
    put(folder, tmp_path / "late", [2])
    cluster("late")
    done = subprocess.run(asked, capture_output=True, text=True, timeout=600)
    assert (done.returncode, len(json.loads(done.stdout)["requests"])) == (0, 120)


def test_a_node_that_lacks_this_package_and_a_missing_cluster_are_named(folder, cluster, tmp_path):
    shadow = tmp_path / "shadow"
    shadow.mkdir()
    (shadow / "polars.py").write_text("raise ImportError('not for this node')")
    put(folder, tmp_path / "a", [0])
    started = cluster("a", PYTHONPATH=str(shadow))
    command = [sys.executable, "-m", "sglang_instrument.cli.main", "summary", "$NODE_DISK/run", "--ray"]
    done = subprocess.run([*command, started.address], capture_output=True, text=True, timeout=600)
    assert done.returncode == 2
    assert "lacks polars; install sglang-instrument[analysis]" in done.stderr
    nothing = subprocess.run(
        [*command[:4], "$NODE_DISK/nothing", "--ray", started.address],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert nothing.returncode == 2
    assert "no node has a file" in nothing.stderr


# The last tests share a cluster; the others ended theirs before.


def test_every_command_answers_the_same_from_a_folder_that_the_nodes_share(folder, shared, start_script):
    questions = (*QUESTIONS, *(DRAWN if CAN_DRAW else ()), *(ASKED_IN_SQL if CAN_ASK else ()))
    expected = ask(start_script, folder, questions=questions)
    on_ray = ask(start_script, folder, shared.address, questions=questions)
    for question in questions:
        assert on_ray[question] == expected[question], question
    assert {code for code, *_ in expected.values()} <= {0, 1, 3}
    in_pieces(start_script, folder, folder, shared.address, times=1)


def test_disks_of_their_own_answer_as_the_folder_that_collect_makes_of_them(
    folder, shared, start_script, tmp_path
):
    spread(folder, shared.disks, "whole")
    # Two files of one name: another process on each node.
    for disk in ("a", "b"):
        target = shared.disks / disk / "whole" / "step_1" / "worker_7.jsonl"
        lines = (folder / "step_1" / "worker_0.jsonl").read_text().splitlines(keepends=True)
        target.write_text(lines[0].replace('"pid":', f'"disk":"{disk}","pid":') + "".join(lines[1:]))
        os.utime(target, (0, 0))
    answers_as_collected(shared.address, start_script, tmp_path / "here", "$NODE_DISK/whole")


def test_pruned_steps_answer_as_in_the_folder_that_collect_makes(folder, shared, start_script, tmp_path):
    spread(folder, shared.disks, "pruned")
    for disk in ("a", "b"):
        assert main(["prune", str(shared.disks / disk / "pruned"), *PRUNE]) == 0
        assert not list((shared.disks / disk / "pruned" / "step_1").glob("*"))
    run = "$NODE_DISK/pruned"
    answers_as_collected(shared.address, start_script, tmp_path / "here", run)
    in_pieces(start_script, tmp_path / "here", run, shared.address)
    shutil.rmtree(shared.disks / "a" / "pruned" / ".pruned")  # of worker 0
    asked = [sys.executable, "-m", "sglang_instrument.cli.main", "requests", run, "--json"]
    asked += ["--ray", shared.address, "--limit", "1000", "--step", "1"]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=600)
    assert {row["worker"] for row in json.loads(done.stdout)["requests"]} == {1, 2}


def test_a_dataset_that_nodes_make_answers_as_the_log(folder, shared, start_script, tmp_path):
    spread(folder, shared.disks, "exported")
    command = [sys.executable, "-m", "sglang_instrument.cli.main", "export", "$NODE_DISK/exported"]
    command += ["--parquet", str(tmp_path / "dataset"), "--ray", shared.address]
    for written in (1, 0):
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
        assert done.stdout.endswith(f": {written} of 1 parts written\n")
    questions = [question for question in QUESTIONS if question != "compare"]
    expected, answers = (
        ask(start_script, logs, questions=questions) for logs in (folder, tmp_path / "dataset")
    )
    for question in questions:
        code, printed, *rest = expected[question]
        assert answers[question] == [code, printed.replace(str(folder), str(tmp_path / "dataset")), *rest]


def in_pieces(start_script, here, on_nodes, address, times=2):
    """Demand that Ray tasks answer about a run that is read in pieces as this machine does, each time."""
    expected = ask(start_script, here, questions=BY_PERIOD, files=8)
    for _ in range(times):
        on_ray = ask(start_script, on_nodes, address, questions=BY_PERIOD, files=8)
        for question in BY_PERIOD:
            code, printed, said, _ = expected[question]
            assert "judged in 6 parts" in printed
            wanted = [code, printed.replace(str(here), str(on_nodes)), said.replace(str(here), str(on_nodes))]
            assert unquoted(on_ray[question], on_nodes)[:3] == wanted, question


def spread(folder, disks, run):
    """Copy the files of worker 0 to disk "a", those of the others to "b", each to a folder of this name."""
    for disk, worker in (("a", 0), ("b", 1), ("b", 2)):
        for path in folder.rglob(f"*_{worker}*.jsonl"):
            target = disks / disk / run / path.relative_to(folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target)


def unquoted(answer, run):
    """Return an answer with the run as it was typed: in commands, quotes keep its $ from the shell."""
    code, printed, *rest = answer
    return [code, printed.replace(f"'{run}'", str(run)), *rest]


def answers_as_collected(address, start_script, here, run):
    """Demand that Ray tasks answer all questions as this machine does from the collected folder."""
    command = [sys.executable, "-m", "sglang_instrument.cli.main", "collect", run]
    subprocess.run([*command, "-o", str(here), "--ray", address], check=True, timeout=600)
    age(here)
    expected = ask(start_script, here)
    on_ray = ask(start_script, run, address)
    for question in QUESTIONS:
        code, printed, said, files = expected[question]
        wanted = [
            code,
            printed.replace(str(here), run),
            said.replace(str(here), run),
            files,
        ]
        assert unquoted(on_ray[question], run) == wanted, question
