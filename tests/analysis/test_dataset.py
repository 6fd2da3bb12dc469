"""`export --parquet` writes a dataset: by run and step, only what changed; it answers as the log does."""

import json
import re
import shutil
from pathlib import Path

import polars as pl
import pytest

from sglang_instrument.analysis import open_run, request_table
from sglang_instrument.analysis.dataset.columns import PARTITIONS, TABLES, schema_of
from sglang_instrument.analysis.dataset.export import export_dataset
from sglang_instrument.cli.main import main
from sglang_instrument.errors import InstrumentError, LogError
from sglang_instrument.safe_files.folder import SafeFolder
from sglang_instrument.testing import SlowEngine, synthetic_run

TYPES = {"run_id": pl.String, "step": pl.Int64}


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    slow = SlowEngine(3, 1, factor=6.0)
    shape = {"steps": 4, "workers": 2, "requests": 8, "validate_every": 2, "engine_clocks": {0: 0.0, 1: 0.0}}
    folder = synthetic_run(tmp_path_factory.mktemp("logs") / "exp", causes=[slow], **shape)
    (folder / "processes").mkdir()
    facts = {"run_id": "synthetic-0", "role": "worker", "rank": 0, "host": "elsewhere", "pid": 7}
    facts |= {"records": {"recorded": 9, "dropped": 2}, "versions": {"sglang": "0.5.11"}}
    (folder / "processes/worker_0.json").write_text(json.dumps(facts))
    return folder


@pytest.fixture(scope="module")
def dataset(logs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("out") / "dataset"
    export_dataset(open_run(logs), folder)
    return folder


@pytest.fixture
def copies(logs, tmp_path):
    """A log that a test may change, and the folder of its dataset."""
    folder, out = tmp_path / "exp", tmp_path / "dataset"
    shutil.copytree(logs, folder)
    export_dataset(open_run(folder), out)
    return folder, out


def spans_of(dataset):
    return pl.read_parquet(dataset / "spans", hive_schema=TYPES)


def files_of(dataset):
    return {path: path.stat().st_mtime_ns for path in (dataset / "spans").rglob("*.parquet")}


def test_each_table_has_the_documented_columns(dataset):
    for name in TABLES:
        if name == "spans":
            table = spans_of(dataset)
            assert table.columns == [one for one in TABLES[name] if one not in PARTITIONS] + [*PARTITIONS]
        else:
            table = pl.read_parquet(dataset / f"{name}.parquet")
            assert table.columns == list(TABLES[name])
        assert dict(table.schema) == schema_of(name)


def test_the_spans_are_those_of_the_log(logs, dataset):
    ours, theirs = spans_of(dataset).drop_nulls("duration_sec"), open_run(logs).spans
    key = ["role", "worker", "step", "validate", "start_us", "end_us", "event"]
    texts = theirs.cast({pl.Categorical: pl.String, pl.Enum: pl.String})
    for column in ("self_sec", "wall_sec", "request_id", "turn", "counts_for"):
        assert ours.sort(*key, column)[column].to_list() == pytest.approx(
            texts.sort(*key, column)[column].to_list()
        )
    assert ours["timestamp"].dt.epoch("us").equals(ours["end_us"])
    assert set(ours.filter(pl.col("step").is_null())["role"]) == {"server", "scheduler", "detokenizer"}


def test_a_parent_is_a_span_of_the_same_file_around_its_child(dataset):
    spans = spans_of(dataset).drop_nulls("duration_sec")
    key = ["run_id", "file", "span"]
    assert spans.select(key).is_unique().all()
    children = spans.filter(pl.col("parent").is_not_null() & ~pl.col("concurrent"))
    pairs = children.join(spans, left_on=["run_id", "file", "parent"], right_on=key)
    assert len(pairs) == len(children)
    assert (pairs["start_us"] >= pairs["start_us_right"]).all()


def test_the_other_tables_are_those_of_the_commands(logs, dataset):
    run = open_run(logs)
    table = {name: pl.read_parquet(dataset / f"{name}.parquet") for name in TABLES if name != "spans"}
    assert len(table["requests"]) == len(request_table(run.everything))
    summary = run.summary()
    steps = table["steps"].filter(~pl.col("validate"))
    for column in ("to_next_step_sec", "engine_sec", "barrier_share", "p99_sec"):
        assert steps[column].to_list() == pytest.approx(summary[column].to_list())
    assert table["findings"]["cause"].to_list() == ["engine"]
    assert json.loads(table["findings"]["evidence"][0])["times"] == pytest.approx(6.0, abs=0.1)
    assert table["processes"].select("process", "recorded", "dropped").rows() == [("worker_0", 9, 2)]
    assert table["engine_requests"]["decode_sec"].null_count() == 0


def test_a_second_export_writes_only_the_spans_of_what_changed(copies):
    logs, dataset = copies
    before = files_of(dataset)
    assert export_dataset(open_run(logs), dataset).written == 0
    assert files_of(dataset) == before
    with (logs / "step_4/worker_1.jsonl").open("a") as file:
        file.write(
            '{"timestamp":"2026-01-05T08:10:00+00:00","event":"late","duration_sec":0.5,"workid":1,"step":4}\n'
        )
    written = export_dataset(open_run(logs), dataset)
    changed = [path for path, time in files_of(dataset).items() if before.get(path) != time]
    assert written.written == len(changed) == 1
    assert "step=4" in str(changed[0])
    assert spans_of(dataset).filter(event="late")["file"].to_list() == ["step_4/worker_1.jsonl"]
    assert len(spans_of(dataset)) == written.rows == len(open_run(logs).records)


def test_spans_of_steps_that_a_resumed_launch_replaced_are_deleted(copies):
    logs, dataset = copies
    header = {"timestamp": "2026-01-06T08:00:00+00:00", "event": "log_opened", "workid": 0, "step": 3}
    header["extra"] = {"log_version": 1, "run_id": "later", "pid": 1, "host": "h", "step_bound": True}
    with (logs / "step_3/worker_0.jsonl").open("a") as file:
        file.write(json.dumps(header) + "\n")
        file.write(
            '{"timestamp":"2026-01-06T08:00:02+00:00","event":"total_step_duration","duration_sec":1.0,'
            '"workid":0,"step":3,"start_us":1767686401000000}\n'
        )
    export_dataset(open_run(logs), dataset)
    runs = spans_of(dataset).filter(role="worker").group_by("run_id").agg(pl.col("step").unique().sort())
    assert dict(runs.rows()) == {"synthetic-0": [1, 2], "later": [3]}


def test_a_killed_export_is_made_good_by_the_next(copies):
    logs, dataset = copies
    next(iter(files_of(dataset))).unlink()
    (dataset / "spans/run_id=synthetic-0/step=1/.draft-1").write_bytes(b"half")
    assert export_dataset(open_run(logs), dataset).written == 1
    assert len(spans_of(dataset)) == len(open_run(logs).records)
    assert not list(dataset.rglob(".draft*"))


def test_an_export_that_was_killed_before_its_end_goes_on(logs, tmp_path, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("sglang_instrument.analysis.dataset.export.make_table", killed)
    with pytest.raises(KeyboardInterrupt):
        export_dataset(open_run(logs), tmp_path / "out")
    monkeypatch.undo()
    assert export_dataset(open_run(logs), tmp_path / "out").written == 5


def test_a_large_step_is_written_by_several_processes(logs, tmp_path, monkeypatch):
    monkeypatch.setattr("sglang_instrument.analysis.executors.batches._BYTES_PER_PROCESS", 100_000)
    monkeypatch.setattr("sglang_instrument.analysis.executors.local._cores", lambda: 2)
    monkeypatch.setattr("sglang_instrument.analysis.executors.batches._BATCH_BYTES", 100_000)
    written = export_dataset(open_run(logs), tmp_path / "out")
    assert written.files > 5
    assert len(spans_of(tmp_path / "out")) == written.rows == len(open_run(logs).records)


def test_nothing_of_others_is_overwritten(logs, dataset, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(InstrumentError, match="neither an empty folder nor a dataset"):
        export_dataset(open_run(logs), tmp_path)
    other = synthetic_run(tmp_path / "other", steps=1, workers=1, requests=2, seed=5)
    with pytest.raises(InstrumentError, match="a dataset of another run \\(synthetic-0\\)"):
        export_dataset(open_run(other), dataset)
    with pytest.raises(InstrumentError, match="is inside the run; give a folder beside"):
        export_dataset(open_run(logs), logs / "parquet")
    with pytest.raises(LogError, match="is a dataset, without the log"):
        export_dataset(open_run(dataset), tmp_path / "again")


COMMANDS = [
    *("summary", "summary --step 3", "requests", "requests --engine", "turns", "workers", "lengths", "gaps"),
    *("staleness --by-worker --groups", "waste"),
]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_answers_from_the_dataset_as_from_the_log(command, logs, dataset, capsys, monkeypatch):
    monkeypatch.chdir(dataset.parent)
    if not Path("exp").exists():
        Path("exp").symlink_to(logs)
    shown = []
    for folder in ("exp", dataset.name):
        name, *options = command.split()
        assert main([name, folder, *options]) == 0
        shown.append(re.sub(rf"\b{folder}\b", "RUN", capsys.readouterr().out))
    assert shown[0] == shown[1]


@pytest.mark.parametrize("command", ["events", "turns --tools", "requests --request 1-0-0000"])
def test_a_command_that_needs_the_log_says_so(command, dataset, capsys):
    name, *options = command.split()
    assert main([name, str(dataset), *options]) == 2
    assert "is a dataset, without the log that this needs" in capsys.readouterr().err


def test_an_older_launch_can_be_exported_alone(copies, tmp_path):
    logs, _ = copies
    written = export_dataset(open_run(f"{logs}@synthetic-0"), tmp_path / "one")
    assert len(spans_of(tmp_path / "one")) == written.rows > 0


def test_a_parquet_file_that_no_export_wrote_is_named_and_stays(copies):
    logs, dataset = copies
    [step] = dataset.glob("spans/run_id=*/step=1")
    (step / "mine.parquet").write_bytes(b"mine")
    with pytest.raises(InstrumentError, match=r"mine\.parquet"):
        export_dataset(open_run(logs), dataset)
    assert (step / "mine.parquet").read_bytes() == b"mine"


def test_one_export_at_a_time_writes_a_dataset(copies):
    logs, dataset = copies
    with SafeFolder(dataset).locked("_lock"), pytest.raises(InstrumentError, match="another"):
        export_dataset(open_run(logs), dataset)


def test_spans_of_a_killed_export_go_when_their_log_is_gone(logs, tmp_path):
    folder, target = tmp_path / "logs", tmp_path / "out"
    shutil.copytree(logs, folder)
    export_dataset(open_run(folder), tmp_path / "whole")
    export_dataset(open_run(folder), target)
    manifest = json.loads((target / "_manifest.json").read_text())
    left = [path.relative_to(target).as_posix() for path in target.glob("spans/run_id=*/step=1/*.parquet")]
    # As if the export that wrote them had been killed before its end.
    begun = sorted({log for name in left for log in manifest["spans"].pop(name)["files"]})
    manifest["files"] = [one for one in manifest["files"] if one[0] not in begun]
    (target / "_manifest.json").write_text(json.dumps({**manifest, "begun": begun}))
    shutil.rmtree(folder / "step_1")
    export_dataset(open_run(folder), target)
    assert not list(target.glob("spans/run_id=*/step=1/*.parquet"))
    assert json.loads((target / "_manifest.json").read_text())["begun"] == []


def test_an_export_that_was_killed_before_its_first_manifest_starts_over(logs, tmp_path):
    target = tmp_path / "out"
    target.mkdir()
    (target / "_lock").touch()
    (target / ".sglang_instrument-0123456789abcdef.draft").write_bytes(b'{"version":')
    assert export_dataset(open_run(logs), target).written == 5
    assert not list(target.rglob("*.draft"))
