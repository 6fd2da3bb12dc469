"""`export --parquet` writes a dataset: parts, only what changed; it answers as the log does."""

import json
import os
import re
import shutil
from pathlib import Path

import polars as pl
import pytest
from alike import differs
from polars.testing import assert_frame_equal

from sglang_instrument.analysis import open_run, request_table
from sglang_instrument.analysis.answers.events import path_table
from sglang_instrument.analysis.dataset.columns import TABLES, schema_of
from sglang_instrument.analysis.dataset.export import export_dataset
from sglang_instrument.analysis.store import homes, store
from sglang_instrument.analysis.store.records import COLUMNS_OF_RECORDS
from sglang_instrument.cli.main import main
from sglang_instrument.errors import InstrumentError
from sglang_instrument.safe_files.folder import SafeFolder
from sglang_instrument.testing import SlowEngine, synthetic_run

#: A small log, and the dataset that the version before parts wrote of it.
EARLIER = Path(__file__).parent / "dataset_before_parts"


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
    return open_run(dataset).sql("from spans")


def files_of(dataset):
    return {path: path.stat().st_mtime_ns for path in dataset.glob("parts/*/records.parquet")}


def test_each_table_has_the_documented_columns(dataset):
    for name in TABLES:
        if name == "spans":
            assert dict(spans_of(dataset).schema) == schema_of(name)
            parts = pl.read_parquet(dataset / "parts/*/records.parquet")
            assert dict(parts.schema) == COLUMNS_OF_RECORDS
            assert parts["start_us"].null_count() == 0 == parts["end_us"].null_count()
            assert parts["extra"].str.contains('"request_id":', literal=True).any()
        else:
            table = pl.read_parquet(dataset / f"{name}.parquet")
            assert dict(table.schema) == schema_of(name)
            assert table.columns == list(TABLES[name])


def test_the_spans_are_those_of_the_log(logs, dataset):
    ours, theirs = spans_of(dataset).drop_nulls("duration_sec"), open_run(logs).spans
    key = ["role", "worker", "step", "validate", "start_us", "end_us", "event"]
    texts = theirs.cast({pl.Categorical: pl.String, pl.Enum: pl.String})
    for column in ("without_nested_sec", "steps_sec", "request_id", "turn", "counts_for"):
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
    for column in ("to_next_step_sec", "engine_sec", "workers_waited_share", "p99_sec"):
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
    [part] = (dataset / "parts").iterdir()
    (part / "records.parquet").unlink()
    part.with_name(".draft-0123456789abcdef").mkdir()
    (part.with_name(".draft-0123456789abcdef") / "records.parquet").write_bytes(b"half")
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
    again = export_dataset(open_run(logs), tmp_path / "out")
    assert (again.written, again.files) == (0, 1)
    assert len(spans_of(tmp_path / "out")) == again.rows


def test_parts_are_written_by_several_processes(logs, tmp_path, monkeypatch):
    monkeypatch.setattr(store, "_FULL", 300)
    monkeypatch.setattr("sglang_instrument.analysis.executors.batches._BYTES_PER_PROCESS", 100_000)
    monkeypatch.setattr("sglang_instrument.analysis.executors.local.processors", lambda: 2)
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


def test_a_dataset_is_exported_as_a_log_is(dataset, tmp_path):
    export_dataset(open_run(dataset), tmp_path / "again")
    rows = "from spans order by all"
    assert open_run(tmp_path / "again").sql(rows).equals(open_run(dataset).sql(rows))
    assert export_dataset(open_run(dataset), tmp_path / "again").written == 0


COMMANDS = [
    *("summary", "summary --step 3", "requests", "requests --engine", "turns", "workers", "lengths", "gaps"),
    *("staleness --by-worker --groups", "waste", "events", "turns --tools", "weights"),
    *("requests --request 1-0-0000", "servers", "loop", "check --json", "requests --fields turns"),
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


def test_paths_of_a_dataset_are_those_of_the_log(logs, dataset):
    rows, expected = (path_table(open_run(folder)) for folder in (dataset, logs))
    assert_frame_equal(rows, expected, check_row_order=False)


def test_an_older_launch_can_be_exported_alone(copies, tmp_path):
    logs, _ = copies
    written = export_dataset(open_run(f"{logs}@synthetic-0"), tmp_path / "one")
    assert len(spans_of(tmp_path / "one")) == written.rows > 0


def test_a_file_that_no_export_wrote_stays(copies):
    logs, dataset = copies
    (logs / "step_4/worker_1.jsonl").unlink()
    [part] = (dataset / "parts").iterdir()
    (part / "mine.txt").write_bytes(b"mine")
    assert export_dataset(open_run(logs), dataset).written == 1
    assert (part / "mine.txt").read_bytes() == b"mine"
    assert "step_4/worker_1.jsonl" not in spans_of(dataset)["file"]


def test_one_export_at_a_time_writes_a_dataset(copies):
    logs, dataset = copies
    with homes.locked(SafeFolder(dataset)), pytest.raises(InstrumentError, match="another"):
        export_dataset(open_run(logs), dataset)


def test_a_part_that_no_index_names_is_deleted(copies):
    logs, dataset = copies
    [part] = (dataset / "parts").iterdir()
    shutil.copytree(part, part.with_name("0123456789abcdef"))
    rows = len(spans_of(dataset))
    export_dataset(open_run(logs), dataset)
    assert list((dataset / "parts").iterdir()) == [part]
    assert len(spans_of(dataset)) == rows


def test_an_export_that_was_killed_before_its_first_manifest_starts_over(logs, tmp_path):
    target = tmp_path / "out"
    target.mkdir()
    (target / "lock").touch()
    (target / "parts").mkdir()
    (target / ".sglang_instrument-0123456789abcdef.draft").write_bytes(b'{"version":')
    assert export_dataset(open_run(logs), target).written == 1
    assert not list(target.rglob("*.draft"))


@pytest.mark.parametrize("command", ["summary", "requests", "turns", "events", "requests --fields turns"])
def test_a_dataset_of_the_version_before_parts_answers_as_its_log_does(command, tmp_path, capsys):
    name, *options = command.split()
    answers = []
    for folder in ("log", "dataset"):
        shutil.copytree(EARLIER / folder, tmp_path / folder)
        for path in (tmp_path / folder).rglob("*.jsonl"):
            os.utime(path, (1e9, 1e9))  # a checkout makes them new: as if somebody still wrote to them
        assert main([name, str(tmp_path / folder), *options, "--json"]) == 0
        answers.append(json.loads(capsys.readouterr().out.replace(str(tmp_path / folder), "RUN")))
    assert differs(*answers) == ""


def test_a_dataset_of_the_version_before_parts_is_converted_by_an_export(tmp_path):
    shutil.copytree(EARLIER / "dataset", tmp_path / "old")
    before = {path: path.read_bytes() for path in (tmp_path / "old").rglob("*") if path.is_file()}
    with pytest.raises(InstrumentError, match="is a dataset of an earlier version"):
        export_dataset(open_run(EARLIER / "log", cached=False), tmp_path / "old")
    export_dataset(open_run(tmp_path / "old"), tmp_path / "new")
    asked = "select event, start_us, without_nested_sec, request_id, extra from spans order by all"
    expected = open_run(EARLIER / "log", cached=False).sql(asked)
    assert open_run(tmp_path / "old").sql(asked).equals(expected)
    assert open_run(tmp_path / "new").sql(asked).equals(expected)
    assert {path: path.read_bytes() for path in before} == before


def test_a_damaged_dataset_says_so(dataset, tmp_path, capsys):
    shutil.copytree(dataset, tmp_path / "cut")
    [part] = (tmp_path / "cut/parts").iterdir()
    (part / "records.parquet").write_bytes(b"PAR1")
    assert main(["events", str(tmp_path / "cut")]) == 2
    assert "its records cannot be read" in capsys.readouterr().err
    (part / "files.json").write_bytes(b"{")
    assert main(["summary", str(tmp_path / "cut")]) == 2
    assert f"parts/{part.name}" in capsys.readouterr().err
    (tmp_path / "cut/index.json").write_bytes(b"{")
    assert main(["summary", str(tmp_path / "cut")]) == 2
    assert "this dataset is damaged; export the log again" in capsys.readouterr().err
