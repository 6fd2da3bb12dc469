"""A process that ended without closing its log is distinguished from running ones and from closed ones."""

import json

import pytest

from sglang_instrument.analysis import open_run
from sglang_instrument.cli.main import main

RECORDED = """
    import os, signal, sys
    import sglang_instrument as si
    si.install()
    with si.step(1), si.span("total_step_duration"):
        si.event("did")
    assert si.flush(60)
    for number in range(1000):
        with si.step(2), si.span("lost"):
            pass
"""
ENDS = {
    "os._exit(0)": 0,
    "os.abort()": -6,
    "os.kill(os.getpid(), signal.SIGTERM)": -15,
    "os.kill(os.getpid(), signal.SIGKILL)": -9,
    "os.execv(sys.executable, [sys.executable, '-c', ''])": 0,
}


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "240")


@pytest.fixture
def printed(capsys):
    def call(*arguments, code=0):
        assert main([str(argument) for argument in arguments]) == code
        return capsys.readouterr().out

    return call


def states(printed, folder):
    """Return the state of each process, as `status` has it."""
    processes = json.loads(printed("status", folder, "--json"))["processes"]
    return {process["process"]: process["state"] for process in processes}


@pytest.mark.parametrize("end", ENDS)
def test_a_process_that_ended_abruptly_is_named(run_script, printed, end):
    folder = run_script(f"{RECORDED}\n    {end}", code=ENDS[end]).folder
    said = "1 process ended abruptly (worker_0): records of the last 0.1 s may be missing"
    assert said in printed("summary", folder)
    assert json.loads(printed("summary", folder, "--json"))["health"]["ended_abruptly"] == ["worker_0"]
    assert states(printed, folder) == {"worker_0": "ended abruptly"}
    assert "ended abruptly: worker_0" in printed("status", folder)


HELPS = {
    "flush": ("si.install()", "si.flush(60); os._exit(0)"),
    "durability": ("si.install(durability='line')", "os._exit(0)"),
    "handler": (
        "si.install(); signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))",
        "os.kill(os.getpid(), signal.SIGTERM)",
    ),
}


@pytest.mark.parametrize(("install", "end"), HELPS.values(), ids=HELPS)
def test_the_ways_to_keep_every_record_in_the_docs_on_cost_work(run_script, install, end):
    source = RECORDED.replace("si.install()", install).replace("assert si.flush(60)", "pass")
    folder = run_script(f"{source}\n    {end}").folder
    assert open_run(folder).health.records == 2 + 1000


def test_a_process_that_became_another_program_has_ended_although_its_pid_exists(start_script, printed):
    script = start_script(
        f"""{RECORDED}
    code = "import time; print('another', flush=True); time.sleep(600)"
    os.execv(sys.executable, [sys.executable, "-c", code])
    """
    )
    script.says("another")
    assert script.process.poll() is None
    assert states(printed, script.folder) == {"worker_0": "ended abruptly"}
    assert open_run(script.folder).health.ended_abruptly == ["worker_0"]


def test_a_process_that_runs_is_said_to_run(start_script, printed):
    script = start_script(f"{RECORDED}\n    print('recorded', flush=True)\n    input()")
    script.says("recorded")
    assert states(printed, script.folder) == {"worker_0": "running"}
    assert open_run(script.folder).health.ended_abruptly == []
    script.tell("end")
    script.wait()
    assert states(printed, script.folder) == {"worker_0": "ended"}
    assert open_run(script.folder).health.ended_abruptly == []


def test_a_running_process_after_uninstall_has_lost_nothing(start_script, printed):
    script = start_script(f"{RECORDED}\n    si.uninstall()\n    print('off', flush=True)\n    input()")
    script.says("off")
    assert states(printed, script.folder) == {"worker_0": "running"}
    assert open_run(script.folder).health.ended_abruptly == []


def test_a_process_that_recorded_again_and_was_killed_is_named(run_script):
    again = "si.uninstall(); si.install(); si.step(3).__enter__(); si.event('did'); si.flush(60); os._exit(0)"
    folder = run_script(f"{RECORDED}\n    {again}").folder
    assert open_run(folder).health.ended_abruptly == ["worker_0"]


def test_a_kill_after_the_last_step_was_closed_is_no_fault(run_script, printed):
    whole = """
    import os
    import sglang_instrument as si
    si.install()
    si.event("before any step")
    for number in (1, 2):
        with si.step(number), si.span("total_step_duration"):
            si.event("did")
    assert si.flush(60)
    os._exit(0)  # as Ray ends its actors
    """
    folder = run_script(whole).folder
    shown = " ".join(printed("check", folder).split())
    assert "nothing is wrong" in shown
    assert "1 process ended abruptly (worker_0)" in shown


def test_a_process_without_files_is_named_by_its_self_description(run_script, printed):
    folder = run_script(f"{RECORDED}\n    os._exit(0)").folder
    processes = folder / "processes"
    facts = json.loads((processes / "worker_0.json").read_text())
    for name, more in (
        ("worker_1", {}),
        ("worker_2", {"log_closed": True}),
        ("worker_3", {"run_id": "else"}),
    ):
        (processes / f"{name}.json").write_text(json.dumps({**facts, **more}))
    assert open_run(folder).health.ended_abruptly == ["worker_0", "worker_1"]


def test_processes_of_other_hosts_count_as_running_until_the_run_is_over(run_script, monkeypatch):
    folder = run_script(f"{RECORDED}\n    os._exit(0)").folder
    for path in folder.rglob("*.json*"):
        lines = path.read_text().splitlines()  # the file that it had just made has no records yet
        if path.suffix == ".jsonl" and lines:
            host = json.loads(lines[0])["extra"]["host"]
            path.write_text(path.read_text().replace(f'"host":"{host}"', '"host":"elsewhere"'))
    (folder / "processes/worker_0.json").unlink()
    run = open_run(folder)
    assert not run.is_over  # it was written to a moment ago
    assert run.health.ended_abruptly == []
    monkeypatch.setattr("sglang_instrument.analysis.reading.liveness._SILENT_SEC", 0.0)
    assert open_run(folder).health.ended_abruptly == ["worker_0"]


KILLED_SCORES = """
    import multiprocessing, os, pathlib, time, warnings
    warnings.simplefilter("ignore", DeprecationWarning)
    import sglang_instrument as si

    si.install(open_now_sec=0.1)
    context = multiprocessing.get_context("fork")

    @si.instrument("score", phase="reward")
    def score(kind):
        with si.span("inner", phase="tool"):
            pass
        if kind == "hangs":
            time.sleep(600)

    def reported(child):
        found = pathlib.Path(si.status()["folder"]).glob(f"step_1/worker_0.*-c{child}.jsonl")
        return any("open_now" in path.read_text() for path in found)

    def run(request_id, kind, child=0):
        with si.bind(request_id=request_id), si.span("request"):
            process = context.Process(target=score, args=(kind,))
            process.start()
            while kind == "hangs" and not reported(child):
                time.sleep(0.02)
            if kind == "hangs":
                process.kill()
            process.join()
            return process.pid
"""


@pytest.mark.parametrize("then", ["run('r3', 'ends')", "pass"])
def test_the_score_that_ran_when_its_process_was_killed_is_named(run_script, printed, then):
    """Whether or not another child goes on writing to the killed one's file."""
    script = run_script(f"""{KILLED_SCORES}
    with si.step(1), si.span("reward_all"):
        run("r1", "ends")
        print(run("r2", "hangs"))
        {then}
    """)
    shown = printed("check", script.folder, code=1)
    (line,) = [line for line in shown.splitlines() if "was open for" in line]
    assert "score of request r2 was open for" in line
    assert line.endswith(f"or longer when its process {script.stdout.strip()} ended")
    assert "open when their process ended: score of request r2" in printed("summary", script.folder)
    (described,) = json.loads(printed("check", script.folder, "--json", code=1))["open"]
    assert (described["pid"], described["request_id"]) == (int(script.stdout), "r2")


def test_what_ended_after_the_last_report_of_a_killed_child_is_not_named(run_script, printed):
    folder = run_script(f"""{KILLED_SCORES}
    def ends_then_killed():
        with si.bind(request_id="r1"), si.span("reward"):
            while not reported(0):
                time.sleep(0.02)
        assert si.flush(60)
        os.kill(os.getpid(), 9)

    with si.step(1):
        process = context.Process(target=ends_then_killed)
        process.start()
        process.join()
        run("r2", "ends")
    """).folder
    assert "was open for" not in printed("check", folder)
