"""What `prune` deletes, what answers afterwards, and what a hostile disk can do to it."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import zstandard
from alike import differs
from polars.testing import assert_frame_equal
from small_disks import small_disk

from sglang_instrument.analysis import joined_calls, open_run, round_trip_table
from sglang_instrument.analysis.answers.events import path_table
from sglang_instrument.analysis.dataset.export import export_dataset
from sglang_instrument.analysis.long_runs.plan import plan_prune
from sglang_instrument.analysis.long_runs.prune import prune
from sglang_instrument.analysis.run.newest_records import control_records
from sglang_instrument.cli.main import main
from sglang_instrument.errors import LogError
from sglang_instrument.testing import SlowEngine, synthetic_run

#: A small run whose step 2 the version before this one pruned.
OLD = Path(__file__).parent / "pruned_before_records"
KEPT = ("--keep-steps", "3", "--keep-slowest", "1")
#: Commands that need no single records.
ANSWERS = (
    ("summary",),
    ("summary", "--by", "week"),
    ("summary", "--step", "4"),
    ("workers",),
    ("requests",),
    ("turns",),
    ("lengths",),
    ("gaps",),
    ("staleness",),
    ("waste",),
    ("check",),
)

Printed = Callable[..., Any]


def aged(folder: Path) -> Path:
    """Let the files of a run be two hours old."""
    for path in folder.rglob("*.jsonl"):
        os.utime(path, (time.time() - 7200,) * 2)
    return folder


def made(folder: Path, **shape: Any) -> Path:
    return aged(synthetic_run(folder, **{"steps": 12, "workers": 2, "requests": 6, "seed": 4, **shape}))


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that no test changes."""
    folder = tmp_path_factory.mktemp("original") / "exp"
    return made(folder, validate_every=3, engine_clocks={0: 0.0, 1: 0.0})


@pytest.fixture
def whole(original: Path, tmp_path: Path) -> Path:
    """A copy of it, with the same times of its files."""
    return shutil.copytree(original, tmp_path / "whole")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of few requests, without the engine's own log, for whatever its records do not matter to."""
    return made(tmp_path / "exp", requests=2, validate_every=3)


@pytest.fixture(scope="module")
def printed() -> dict[tuple[str, ...], str]:
    """What commands printed of `original`."""
    return {}


@pytest.fixture
def earlier(original: Path, whole: Path, printed: dict[tuple[str, ...], str]) -> Callable[..., Any]:
    """What a command answered before anything was deleted; it is asked once for all tests."""

    def answer(*words: str) -> Any:
        if words not in printed:
            with redirect_stdout(io.StringIO()) as output:
                assert main([words[0], str(original), *words[1:], "--json"]) == 0
            printed[words] = output.getvalue()
        return json.loads(printed[words].replace(str(original), str(whole)))

    return answer


@pytest.fixture
def asked(capsys: pytest.CaptureFixture[str]) -> Printed:
    def ask(*arguments: object, code: int = 0) -> Any:
        assert main([*map(str, arguments), "--json"]) == code
        return json.loads(capsys.readouterr().out)

    return ask


def logs(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.glob("*_*/*.jsonl")}


def test_answers_about_the_whole_run_stay_as_they_were(whole: Path, asked: Printed, earlier: Printed) -> None:
    paths = path_table(open_run(whole))
    done = asked("prune", whole, *KEPT, "--yes")
    assert done["done"]
    assert done["deleted"]["files"] == done["drop"]["files"] > 0
    for words in ANSWERS:
        assert differs(asked(words[0], whole, *words[1:]), earlier(*words)) == "", words
    key = ["validate", "step", "worker", "path"]
    assert_frame_equal(path_table(open_run(whole)).sort(key), paths.sort(key))


def test_engine_calls_of_pruned_steps_are_still_joined(whole: Path, asked: Printed) -> None:
    before = open_run(whole, cached=False)
    calls, trips = joined_calls(before), round_trip_table(before)
    assert calls["step"].n_unique() == 12
    asked("prune", whole, *KEPT, "--yes")
    after = open_run(whole, cached=False)
    assert_frame_equal(joined_calls(after).sort("rid"), calls.sort("rid"))
    assert_frame_equal(round_trip_table(after), trips)


def test_the_newest_and_slowest_steps_and_those_with_findings_keep_their_records(
    tmp_path: Path, asked: Printed
) -> None:
    folder = made(tmp_path / "exp", workers=4, requests=16, causes=[SlowEngine(2, 1, factor=8.0)])
    plan = plan_prune(folder, 3, 1)
    assert plan.keep[2, False] == "named by a finding" or plan.keep[2, False] == "slowest"
    asked("prune", folder, *KEPT, "--yes")
    kept_steps = {int(path.name[5:]) for path in folder.glob("step_*")}
    assert {2, 10, 11, 12} <= kept_steps
    assert len(kept_steps) == len(plan.keep) < 12


def test_a_finding_keeps_the_records_of_its_step(tmp_path: Path) -> None:
    folder = made(tmp_path / "exp", workers=4, requests=16, causes=[SlowEngine(2, 1, factor=8.0)])
    assert plan_prune(folder, 3, 0).keep[2, False] == "named by a finding"


def test_records_of_pruned_steps_answer_as_before(
    whole: Path, asked: Printed, capsys: pytest.CaptureFixture[str]
) -> None:
    request = open_run(whole).requests(step=1)["request_id"][0]
    questions = (
        ("events",),
        ("events", "--step", "1"),
        ("requests", "--request", request),
        ("turns", "--step", "1", "--tools"),
        ("requests", "--fields", "turns,turn:max"),
        ("sql", "select * from spans order by file, start_us, event, span"),
        ("sql", "from fields order by all"),
    )
    before = [asked(words[0], whole, *words[1:]) for words in questions]
    rows = open_run(whole).records
    assert main(["prune", str(whole), *KEPT, "--yes"]) == 0
    capsys.readouterr()
    for words, answer in zip(questions, before, strict=True):
        assert differs(asked(words[0], whole, *words[1:]), answer) == "", words
    assert len(open_run(whole).records) == len(rows)
    assert main(["report", str(whole), "--step", "1", "-o", str(whole.parent / "report.html")]) == 0
    capsys.readouterr()
    assert main(["events", str(whole)]) == 0
    assert "pruned" not in capsys.readouterr().err
    assert main(["check", str(whole)]) == 0
    assert f"pruned on {today()}" in capsys.readouterr().out


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.zst"])
def test_lines_of_all_kinds_outlive_their_file(whole: Path, ending: str) -> None:
    path = whole / "step_2" / "worker_0.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    odd = [
        b'{"timestamp": "2026-01-05T08:00:01", "event": "of nobody", "new_key": [1, {"a": null}]}\n',
        b'{"timestamp":"2026-01-05T16:00:01.000001+08:00", "event":"east", "step":"x", "extra":{"f":NaN}}\n',
        b'{"timestamp": "yesterday", "event": "without a time", "duration_sec": 1.0}\n',
        b'{"timestamp": "2026-01-05T08:00:01+00:00", "event": "torn", "dur\n',
        b"no JSON\n",
        b"\n",
        b'{"timestamp":"2026-01-05T08:00:01+00:00", "event":"t", "phase":"tool", "duration_sec":1e-9}\n',
    ]
    text = b"".join([*lines[:5], *odd, *lines[5:]])
    path.unlink()
    path = path.with_name(f"worker_0{ending}")
    path.write_bytes(zstandard.ZstdCompressor().compress(text) if ending.endswith("zst") else text)
    os.utime(path, (1e9, 1e9))
    before = open_run(whole, cached=False)
    records, health = before.read_records(2, texts=True).drop("position"), before.health
    controls = [(file.path, line) for file, _, line in control_records(before)]
    prune(plan_prune(whole, 3, 0))
    assert not path.exists()
    after = open_run(whole, cached=False)
    again = after.read_records(2, texts=True).drop("position")
    assert_frame_equal(again, records, categorical_as_str=True)
    assert [(file.path, line) for file, _, line in control_records(after)] == controls
    assert (after.health.torn, after.health.foreign) == (health.torn, health.foreign)
    [part] = (whole / ".pruned").glob("[!.]*")
    rows = pl.read_parquet(part / "records.parquet").filter(pl.col("file").str.starts_with("step_2/worker_0"))
    assert rows.filter(event="east")["stamp"].to_list() == ["2026-01-05T16:00:01.000001+08:00"]
    text = b"\n".join(pl.read_parquet(part / "lines.parquet")["text"])
    assert text.count(b"no JSON") == text.count(b"yesterday") == text.count(b'"torn", "dur') == 1


def test_what_earlier_versions_pruned_without_its_records_still_answers(
    tmp_path: Path, asked: Printed, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = tmp_path / "old"
    shutil.copytree(OLD, whole)
    assert len(asked("requests", whole)["requests"]) == 6
    assert [row["step"] for row in asked("summary", whole)["steps"]] == [1, 2, 3]
    assert main(["events", str(whole), "--step", "2"]) == 2
    assert "the records of step 2 were pruned on" in capsys.readouterr().err
    assert main(["events", str(whole)]) == 0
    assert "this answer is of the other steps" in capsys.readouterr().err
    assert joined_calls(open_run(whole))["step"].n_unique() == 3


def today() -> str:
    return time.strftime("%Y-%m-%d", time.gmtime())


def test_without_yes_nothing_is_deleted(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = logs(whole)
    assert main(["prune", str(whole), *KEPT]) == 0
    output = capsys.readouterr().out
    assert "to delete: the logs of 9 steps and" in output
    assert "nothing was deleted; --yes deletes without asking" in output
    assert logs(whole) == before
    assert not (whole / ".pruned").exists()


def test_a_person_is_asked(run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setattr("sglang_instrument.cli.commands.prune.is_terminal", lambda: True)
    before = logs(run)
    for answer, is_done in (("no", False), ("y", False), ("yes", True)):
        monkeypatch.setattr("builtins.input", lambda _, answer=answer: answer)
        assert main(["prune", str(run), *KEPT]) == 0
        assert (logs(run) != before) is is_done
    assert "deleted" in capsys.readouterr().out


def test_it_can_be_called_again_and_again(whole: Path, asked: Printed, earlier: Printed) -> None:
    asked("prune", whole, "--keep-steps", 9, "--keep-slowest", 0, "--yes")
    asked("prune", whole, "--keep-steps", 5, "--keep-slowest", 0, "--yes")
    assert asked("prune", whole, "--keep-steps", 5, "--keep-slowest", 0, "--yes")["drop"]["files"] == 0
    assert len(list((whole / ".pruned").glob("[!.]*"))) == 2
    assert differs(asked("requests", whole), earlier("requests")) == ""


def test_older_launches_still_open_by_their_id(tmp_path: Path, asked: Printed) -> None:
    folder = made(tmp_path / "exp", steps=6)
    later = {"clock_skew": {0: 3600.0, 1: 3600.0}, "first_step": 3, "seed": 5}
    new = made(tmp_path / "new", **{"steps": 8, **later})
    for path in new.rglob("*.jsonl"):
        target = folder / path.relative_to(new)
        target.parent.mkdir(exist_ok=True)
        with target.open("ab") as stream:
            stream.write(path.read_bytes())
    aged(folder)
    older = asked("requests", f"{folder}@synthetic-4")
    newest = asked("requests", folder)
    asked("prune", folder, *KEPT, "--yes")
    assert len(logs(folder)) < 20
    assert differs(asked("requests", f"{folder}@synthetic-4"), older) == ""
    assert differs(asked("requests", folder), newest) == ""


def test_a_run_that_still_logs_keeps_what_it_may_write_to(run: Path) -> None:
    described = {"run_id": "synthetic-4", "host": os.uname().nodename, "pid": os.getpid()}
    (run / "processes").mkdir()
    (run / "processes/worker_0.json").write_text(json.dumps(described))
    assert not open_run(run).is_over
    unended = run / "step_5/worker_1.jsonl"
    lines = unended.read_bytes().splitlines(keepends=True)
    unended.write_bytes(b"".join(line for line in lines if b'_closed"' not in line))
    aged(run)
    plan = plan_prune(run, 1, 0)
    assert {step for (step, validate), why in plan.keep.items() if "written" in why and not validate} == {
        *(5, 10, 11)
    }
    assert (12, False) not in plan.steps


def test_files_that_changed_a_moment_ago_stay(run: Path) -> None:
    os.utime(run / "step_1/worker_0.jsonl")
    assert plan_prune(run, 3, 0).keep[1, False] == "may still be written to"


def test_records_without_a_step_stay(run: Path) -> None:
    header = (run / "step_1/worker_0.jsonl").read_bytes().splitlines()[0]
    (run / "step_0").mkdir()
    unbound = header.replace(b'"extra":{', b'"extra":{"step_bound":false,').replace(b'"step":1', b'"step":0')
    (run / "step_0/trainer_0.jsonl").write_bytes(unbound + b"\n")
    aged(run)
    prune(plan_prune(run, 3, 0))
    assert (run / "step_0/trainer_0.jsonl").exists()
    assert not (run / "step_1").exists()


def test_what_is_no_log_stays(run: Path) -> None:
    (run / "step_1/notes.txt").write_text("mine")
    (run / "step_1/notes.jsonl").write_text("mine\n")
    prune(plan_prune(run, 3, 0))
    assert sorted(path.name for path in (run / "step_1").iterdir()) == ["notes.jsonl", "notes.txt"]


def test_links_are_not_followed(run: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (run / "step_1").rename(elsewhere)
    (run / "step_1").symlink_to(elsewhere)
    lone = tmp_path / "lone.jsonl"
    (run / "step_2/worker_0.jsonl").rename(lone)
    (run / "step_2/worker_0.jsonl").symlink_to(lone)
    plan = plan_prune(run, 3, 0)
    prune(plan)
    assert sorted(path.name for path in elsewhere.iterdir()) == ["worker_0.jsonl", "worker_1.jsonl"]
    assert lone.exists()
    assert (run / "step_2/worker_0.jsonl").is_symlink()
    assert plan.left["step_1/worker_0.jsonl"] == "step_1 is a link to another folder"
    assert plan.left["step_2/worker_0.jsonl"] == "it is no regular file"


def test_a_folder_that_becomes_a_link_after_the_plan_is_not_followed(run: Path, tmp_path: Path) -> None:
    plan = plan_prune(run, 3, 0)
    elsewhere = tmp_path / "elsewhere"
    (run / "step_1").rename(elsewhere)
    (run / "step_1").symlink_to(elsewhere)
    outcome = prune(plan)
    assert len(list(elsewhere.iterdir())) == 2
    assert set(outcome.left) == {"step_1/worker_0.jsonl", "step_1/worker_1.jsonl"}


def test_a_link_in_place_of_our_folder_is_refused(run: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (run / ".pruned").symlink_to(tmp_path / "elsewhere")
    before = logs(run)
    with pytest.raises(LogError, match="nothing was deleted"):
        prune(plan_prune(run, 3, 0))
    assert logs(run) == before
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_file_that_changed_after_the_plan_stays_and_is_named(
    whole: Path, asked: Printed, earlier: Printed
) -> None:
    plan = plan_prune(whole, 3, 0)
    with (whole / "step_1/worker_0.jsonl").open("ab") as stream:
        stream.write(b"\n")
    (whole / "step_2/worker_1.jsonl").unlink()
    outcome = prune(plan)
    assert outcome.left["step_1/worker_0.jsonl"] == "it changed meanwhile"
    assert "No such file" in outcome.left["step_2/worker_1.jsonl"]
    assert (whole / "step_1/worker_0.jsonl").exists()
    assert outcome.files == len(plan.drop) - 2
    # What is there counts in place of its digest, not twice.
    assert len(asked("requests", whole)["requests"]) == len(earlier("requests")["requests"])


def test_where_the_digest_cannot_be_written_nothing_is_deleted(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / ".pruned").write_text("in the way")
    before = logs(run)
    assert main(["prune", str(run), *KEPT, "--yes"]) == 2
    assert "nothing was deleted" in capsys.readouterr().err
    assert logs(run) == before


def test_on_a_full_disk_nothing_is_deleted_and_the_disk_is_named(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with small_disk(tmp_path / "small", "2m") as disk:
        full = Path(shutil.copytree(run, disk / "exp"))
        before = logs(full)
        rest = shutil.disk_usage(disk).free - 8192
        (disk / "filler").write_bytes(bytes(rest))
        assert main(["prune", str(full), *KEPT, "--yes"]) == 2
        assert "nothing was deleted: [Errno 28] No space left on device" in capsys.readouterr().err
        assert logs(full) == before
        assert shutil.disk_usage(disk).free >= 4096  # what was written of the digest is gone again


def test_files_in_a_read_only_folder_stay_and_are_named(run: Path, asked: Printed) -> None:
    (run / "step_1").chmod(0o555)
    try:
        if _can_write(run / "step_1"):
            pytest.skip("this user may write everywhere")
        answer = asked("prune", run, *KEPT, "--yes", code=1)
    finally:
        (run / "step_1").chmod(0o755)
    assert answer["left"]["step_1/worker_0.jsonl"] == "Permission denied"
    assert not (run / "step_2").exists()


def _can_write(folder: Path) -> bool:
    try:
        (folder / "try").touch()
    except OSError:
        return False
    (folder / "try").unlink()
    return True


def test_only_one_prune_works_at_a_time(run: Path, asked: Printed) -> None:
    program = (
        "import fcntl, sys, time; lock = open(sys.argv[1], 'w'); fcntl.flock(lock, fcntl.LOCK_EX);"
        "print('held', flush=True); time.sleep(600)"
    )
    (run / ".pruned").mkdir()
    held = [sys.executable, "-c", program, str(run / ".pruned/.lock")]
    with subprocess.Popen(held, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(LogError, match="another `prune` works"):
            prune(plan_prune(run, 3, 0))
        other.kill()
    prune(plan_prune(run, 3, 0))


def test_two_plans_of_the_same_files_lose_nothing(whole: Path, asked: Printed, earlier: Printed) -> None:
    first, second = plan_prune(whole, 3, 0), plan_prune(whole, 3, 0)
    prune(first)
    outcome = prune(second)
    assert outcome.files == 0
    assert len(outcome.left) == len(second.drop)
    assert differs(asked("summary", whole), earlier("summary")) == ""


def test_a_prune_that_is_killed_before_it_deletes_can_be_called_again(
    whole: Path, asked: Printed, earlier: Printed
) -> None:
    killed = (
        "import os, signal, sys; from pathlib import Path;"
        "from sglang_instrument.analysis.long_runs import prune as module;"
        "from sglang_instrument.analysis.long_runs.plan import plan_prune;"
        "module._delete_one = lambda *_: os.kill(os.getpid(), signal.SIGKILL);"
        "module.prune(plan_prune(Path(sys.argv[1]), 3, 0))"
    )
    done = subprocess.run([sys.executable, "-c", killed, str(whole)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(list((whole / ".pruned").glob("[!.]*"))) == 1
    assert differs(asked("summary", whole), earlier("summary")) == ""
    assert open_run(whole).health.pruned == {}
    outcome = prune(plan_prune(whole, 3, 0))
    assert outcome.files > 0
    assert outcome.kept_bytes == 0  # the digest was there
    assert len(list((whole / ".pruned").glob("[!.]*"))) == 1
    assert differs(asked("summary", whole), earlier("summary")) == ""


def test_a_prune_that_is_killed_while_it_writes_leaves_a_draft_that_nobody_reads(
    whole: Path, asked: Printed, earlier: Printed
) -> None:
    draft = whole / ".pruned/.draft-20260101T000000-0"
    draft.mkdir(parents=True)
    (draft / "digest.json").write_text("{")
    assert differs(asked("summary", whole), earlier("summary")) == ""
    prune(plan_prune(whole, 3, 0))
    assert not draft.exists()


def test_a_writer_that_makes_a_pruned_file_again_adds_to_it(run: Path, asked: Printed) -> None:
    path = run / "step_1/worker_0.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    requests = len(asked("requests", run, "--step", 1)["requests"])
    prune(plan_prune(run, 3, 0))
    header = json.loads(lines[0])
    header["timestamp"] = header["timestamp"].replace("2026-01-05", "2026-01-06")
    late = next(line for line in lines if b'"async_rollout_request_complete"' in line)
    path.parent.mkdir()
    request = json.loads(late)["extra"]["request_id"].encode()
    path.write_bytes(json.dumps(header).encode() + b"\n" + late.replace(request, b"late"))
    assert len(asked("requests", run, "--step", 1)["requests"]) == requests + 1


def test_a_file_that_is_put_back_counts_once(
    whole: Path, tmp_path: Path, asked: Printed, earlier: Printed
) -> None:
    shutil.copytree(whole, tmp_path / "copy")
    prune(plan_prune(whole, 3, 0))
    for path in (tmp_path / "copy").glob("step_*/*.jsonl"):
        target = whole / path.relative_to(tmp_path / "copy")
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(path, target)
    aged(whole)
    assert differs(asked("summary", whole), earlier("summary")) == ""


def test_a_digest_that_cannot_be_read_is_an_error_of_check(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prune(plan_prune(run, 3, 0))
    [home] = (run / ".pruned").glob("[!.]*")
    (home / "files.json").write_text("{")
    assert main(["check", str(run)]) == 1
    assert f"unreadable: .pruned/{home.name}" in capsys.readouterr().out
    assert main(["summary", str(run)]) == 0


def test_a_dataset_has_the_spans_of_pruned_steps_whether_it_was_written_before_or_after(
    run: Path, tmp_path: Path, asked: Printed
) -> None:
    target = tmp_path / "dataset"
    before = export_dataset(open_run(run), target)
    prune(plan_prune(run, 3, 0))
    after = export_dataset(open_run(run), target)
    assert (after.rows, after.files, after.written) == (before.rows, before.files, 0)
    assert differs(asked("summary", target)["steps"], asked("summary", run)["steps"]) == ""
    later = export_dataset(open_run(run), tmp_path / "later")
    assert later.rows == before.rows


def test_the_report_and_runs_take_a_pruned_run(
    run: Path, tmp_path: Path, asked: Printed, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = asked("runs", run)["runs"][0]
    prune(plan_prune(run, 3, 0))
    assert main(["report", str(run), "-o", str(tmp_path / "report.html")]) == 0
    capsys.readouterr()
    row = asked("runs", run)["runs"][0]
    assert (row["steps"], row["workers"]) == (whole["steps"], whole["workers"])
    assert row["bytes"] == sum(path.stat().st_size for path in run.rglob("*.jsonl")) < whole["bytes"]


def test_a_dataset_or_a_single_launch_is_refused(run: Path, tmp_path: Path) -> None:
    export_dataset(open_run(run), tmp_path / "dataset")
    with pytest.raises(LogError, match="is a dataset"):
        plan_prune(tmp_path / "dataset", 3, 0)
    with pytest.raises(LogError, match="no such folder"):
        plan_prune(Path(f"{run}@synthetic-4"), 3, 0)


@pytest.mark.parametrize("words", [("--keep-steps", "0"), ("--keep-steps", "x"), ("--keep-slowest", "-1")])
def test_a_wrong_number_is_refused(run: Path, words: tuple[str, str]) -> None:
    assert main(["prune", str(run), *words]) == 2


def without_first_line(path: Path) -> None:
    """Delete the header of a log, as a disk or a tool that cuts files at their front does."""
    path.write_bytes(path.read_bytes().partition(b"\n")[2])


@pytest.mark.parametrize("files", ["*.jsonl", "worker_0.jsonl"])
def test_the_newest_steps_keep_their_records_without_their_first_lines(run: Path, files: str) -> None:
    for step in (10, 11, 12):
        for path in (run / f"step_{step}").glob(files):
            without_first_line(path)
    aged(run)
    plan = plan_prune(run, 3, 0)
    assert {(10, False), (11, False), (12, False)} <= set(plan.keep)
    prune(plan)
    assert {"step_10/worker_0.jsonl", "step_11/worker_0.jsonl", "step_12/worker_0.jsonl"} <= logs(run)


def test_steps_of_an_unknown_launch_take_no_place_of_the_newest_known_ones(tmp_path: Path) -> None:
    run = synthetic_run(tmp_path / "exp", steps=20, workers=1, requests=3, seed=4)
    resumed = synthetic_run(tmp_path / "later", steps=9, workers=1, requests=3, seed=5)
    shift = 86_400 * 365
    for step in range(5, 10):  # the later launch began at step 5 and is at step 9
        lines = (resumed / f"step_{step}/worker_0.jsonl").read_text().replace("synthetic-0", "later")
        records = [json.loads(line) for line in lines.splitlines()]
        for record in records:
            record["timestamp"] = f"{int(record['timestamp'][:4]) + 1}{record['timestamp'][4:]}"
            if "start_us" in record:
                record["start_us"] += shift * 1_000_000
        path = run / f"step_{step}/worker_0.jsonl"
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    for step in (18, 19, 20):
        without_first_line(run / f"step_{step}/worker_0.jsonl")
    aged(run)
    keep = plan_prune(run, 3, 0).keep
    assert {(step, False) for step in (7, 8, 9)} <= set(keep)
    assert {(step, False) for step in (18, 19, 20)} <= set(keep)
