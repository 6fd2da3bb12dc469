"""One process may write for many workers: each has its files, whole steps, and its own description, once."""

import contextvars
import json

import sglang_instrument
from sglang_instrument import bind, event, span, step
from sglang_instrument.analysis import read_processes
from sglang_instrument.recording.settings.configuration import keep_settings


def events_of(records):
    return [record["event"] for record in records]


def test_a_process_of_200_workers_writes_all_their_steps_and_describes_each_worker_once(run_script):
    script = run_script("""
        import sglang_instrument as si
        from sglang_instrument.recording.keep import files

        written = []
        write = files.write_anew
        files.write_anew = lambda path, text: (written.append(path.name), write(path, text))
        si.install()
        for number in (1, 2):
            for worker in range(200):
                with si.bind(worker=worker), si.step(number), si.span("total_step_duration"):
                    pass
        assert si.flush(120)
        of_workers = [name for name in written if ".worker_0.json" not in name]
        assert len(of_workers) == len(set(of_workers)) == 199, len(of_workers)
    """)
    files = script.records
    assert len(files) == 400
    for records in files.values():
        reopened = [name for name in events_of(records) if name != "log_opened"]  # 16 files are open at once
        assert reopened == ["total_step_duration", "step_closed"] or reopened[2:] == ["log_closed"]
    described = [json.loads(path.read_text()) for path in (script.folder / "processes").glob("*.json")]
    assert sorted(process["rank"] for process in described) == list(range(200))
    for process in described:
        assert process["log_closed"]
        assert process["workers"] == [f"worker_{rank}" for rank in range(200)]


def test_a_worker_that_is_bound_inside_a_step_has_its_end_of_the_step(install, records_below):
    folder = install()
    for number in (1, 2):
        with step(number):
            event("before")
            for _ in range(2):  # the step of a worker is complete when the step is, not when its block ends
                for worker in (1, 2, 0):
                    with bind(worker=worker), span("work"):
                        pass
    sglang_instrument.uninstall()
    files = records_below(folder)
    assert set(files) == {f"step_{number}/worker_{worker}.jsonl" for number in (1, 2) for worker in (0, 1, 2)}
    for path, records in files.items():
        before = ["before"] if "worker_0" in path else []
        assert events_of(records) == ["log_opened", *before, "work", "work", "step_closed", "log_closed"]


def test_a_worker_that_outlives_the_step_it_was_bound_in_ends_it_later(install, records_below):
    folder = install()
    inner = bind(worker=1)
    with step(1):
        task = contextvars.copy_context()
        task.run(inner.__enter__)
    assert sglang_instrument.flush(60)
    task.run(event, "late")
    task.run(inner.__exit__, None, None, None)
    sglang_instrument.uninstall()
    assert events_of(records_below(folder)["step_1/worker_1.jsonl"]) == [
        "log_opened",
        "late",
        "step_closed",
        "log_closed",
    ]


def test_a_worker_that_is_bound_outside_of_any_step_ends_none(install, records_below):
    folder = install()
    with bind(worker=1):
        event("idle")
    sglang_instrument.uninstall()
    assert events_of(records_below(folder)["step_0/worker_1.jsonl"]) == ["log_opened", "idle", "log_closed"]


def test_status_has_the_newest_counts_for_each_worker_of_a_process(install):
    folder = install()
    for worker in (0, 1):
        with bind(worker=worker), step(1):
            event("did")
    assert sglang_instrument.flush(60)
    processes = folder / "processes"
    first, second = (json.loads((processes / f"worker_{rank}.json").read_text()) for rank in (0, 1))
    (processes / "worker_0.json").write_text(json.dumps({**first, "records": {"recorded": 9}}))
    read = read_processes(folder).processes
    assert second["records"] != {"recorded": 9}
    assert [read[name]["records"] for name in ("worker_0", "worker_1")] == [{"recorded": 9}] * 2
    assert [read[name]["rank"] for name in ("worker_0", "worker_1")] == [0, 1]


def test_the_settings_of_a_process_stand_in_the_file_of_its_first_worker_alone(install, tmp_path):
    install(log_dir=tmp_path, experiment="run")
    keep_settings("config", {"batch": 8})
    for worker in range(3):
        with bind(worker=worker), step(1), span("total_step_duration"):
            pass
    sglang_instrument.uninstall()
    described = [json.loads(path.read_text()) for path in (tmp_path / "run/processes").glob("*.json")]
    assert len(described) == 3
    assert [process["configuration"] for process in described if "configuration" in process] == [
        {"config": {"batch": 8}}
    ]
