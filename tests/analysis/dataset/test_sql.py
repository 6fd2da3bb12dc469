"""`sql` answers from the log, its cache and a dataset alike, and reads nothing but the run."""

import json
import os
import shutil
import subprocess
import sys
import time

import polars as pl
import pytest
from documented import blocks

from sglang_instrument.analysis import open_run
from sglang_instrument.analysis.dataset.columns import TABLES, VIEWS
from sglang_instrument.analysis.dataset.export import export_dataset
from sglang_instrument.analysis.run import digest_of_run
from sglang_instrument.analysis.run.opening import Run
from sglang_instrument.cli.main import main
from sglang_instrument.errors import InstrumentError, LogError
from sglang_instrument.testing import SlowEngine, synthetic_run

QUESTIONS = [block for block in blocks("sql") if block.page == "docs/how-to/sql.md"]
P99 = """select step, quantile_cont(duration_sec, 0.99) as p99_sec
from spans where event = 'tool_execution' and not validate group by step order by step"""
#: Questions of the page without an answer in the synthetic run: nothing failed.
UNANSWERED = {"error is not null"}


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    slow = SlowEngine(3, 1, factor=6.0)
    shape = {"steps": 6, "workers": 2, "requests": 12, "validate_every": 3, "engine_clocks": {0: 0.0, 1: 0.0}}
    # The characters have a meaning in patterns of file names, and in SQL.
    return synthetic_run(tmp_path_factory.mktemp("logs") / "it's [1]*", causes=[slow], **shape)


@pytest.fixture(scope="module")
def dataset(logs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("out") / "data's[2]?"
    export_dataset(open_run(logs), folder)
    return folder


@pytest.fixture(scope="module")
def run(dataset):
    return open_run(dataset)


def asked(capsys, *arguments, code=0):
    assert main(["sql", *map(str, arguments)]) == code
    printed = capsys.readouterr()
    return printed.out if code == 0 else printed.err


def test_the_page_has_twenty_questions():
    assert len(QUESTIONS) == 20


@pytest.mark.parametrize("question", QUESTIONS, ids=str)
def test_a_question_of_the_page_has_an_answer(question, run):
    answer = run.sql(question.text)
    assert answer.is_empty() == any(words in question.text for words in UNANSWERED)


def test_log_and_dataset_give_the_same_answer_which_is_polars_own(logs, run):
    spans = open_run(logs).spans.filter(
        pl.col("event").cast(pl.String) == "tool_execution", ~pl.col("validate")
    )
    expected = (
        spans.group_by("step").agg(p99_sec=pl.col("duration_sec").quantile(0.99, "linear")).sort("step")
    )
    for source in (open_run(logs), run):
        answer = source.sql(P99)
        assert answer["step"].equals(expected["step"])
        assert answer["p99_sec"].to_list() == pytest.approx(expected["p99_sec"].to_list())


def test_a_large_log_is_read_once(logs, monkeypatch):
    monkeypatch.setattr("sglang_instrument.analysis.store.homes._WORTHWHILE_BYTES", 1000)
    first = open_run(logs).sql(P99)
    parts = list((logs / ".store/parts").rglob("records.parquet"))
    assert parts
    times = [path.stat().st_mtime_ns for path in parts]
    assert open_run(logs).sql(P99).equals(first)
    assert [path.stat().st_mtime_ns for path in parts] == times


def test_a_question_about_records_needs_no_digest_of_the_whole_run(logs, tmp_path, monkeypatch, capsys):
    folder = shutil.copytree(logs, tmp_path / "exp")
    for path in folder.rglob("*.jsonl"):
        os.utime(path, (time.time() - 3600, time.time() - 3600))  # else those that are not closed get no part
    count = "select event, count(*) as n, round(sum(steps_sec), 6) as sec from spans group by 1 order by 1"
    expected = [json.loads(asked(capsys, folder, question, "--json")) for question in (P99, count)]
    monkeypatch.setattr("sglang_instrument.analysis.store.homes._WORTHWHILE_BYTES", 1000)
    monkeypatch.setattr("sglang_instrument.analysis.run.digest_of_run._SOME_BYTES", 100_000)
    sizes = []
    digest_files = digest_of_run.digest_files

    def noted(executor, files, progress=None):
        sizes.append(len(files))
        return digest_files(executor, files, progress)

    monkeypatch.setattr(digest_of_run, "digest_files", noted)
    for _ in range(2):  # from the log, and from the store
        answers = [json.loads(asked(capsys, folder, question, "--json")) for question in (P99, count)]
        assert answers == expected
    assert len(sizes) > 2  # once each, some files at a time
    assert sum(sizes) == len(list(folder.rglob("*.jsonl")))
    opened = Run.open(folder, files_alone=True)
    assert opened.everything.steps.is_empty()
    assert opened.health == Run.open(folder).health
    assert main(["prune", str(folder), "--keep-steps", "2", "--keep-slowest", "1", "--yes"]) == 0
    capsys.readouterr()
    assert [json.loads(asked(capsys, folder, question, "--json")) for question in (P99, count)] == expected


def test_a_question_about_records_loads_no_digest_of_a_dataset(logs, dataset, capsys):
    opened = Run.open(dataset, files_alone=True)
    assert opened.everything.steps.is_empty()
    assert opened.health == Run.open(dataset).health
    answers = [json.loads(asked(capsys, folder, P99, "--json")) for folder in (logs, dataset)]
    assert answers[0]["rows"] == answers[1]["rows"]


def test_every_table_is_there_even_without_rows(run):
    assert set(run.sql("show tables")["name"]) == {*TABLES, *VIEWS}
    for name, columns in {**TABLES, **VIEWS}.items():
        described = run.sql(f"describe {name}")
        assert described["column_name"].to_list() == list(columns)


def test_results_have_types_that_every_reader_has(run):
    answer = run.sql(
        "select sum(turn) as turns, 1.5 as half, interval 90 second as time, 1 as a, 2 as a from turns"
    )
    assert answer.columns == ["turns", "half", "time", "a", "a_1"]
    assert answer["time"].to_list() == [90.0]
    assert answer.schema["turns"] == pl.Int64
    assert answer.schema["half"] == pl.Float64


def test_a_sum_of_more_than_64_bits_is_exact(run, dataset, capsys):
    columns = "9e18::bigint * count(*)::hugeint as large, null::hugeint as none, sum(turn) as turns"
    query = f"select {columns} from turns"
    turns = run.sql("select count(*) as n, sum(turn) as sum from turns").row(0)
    assert turns[0] > 1
    answer = run.sql(query)
    assert answer.rows() == [(9 * 10**18 * turns[0], None, turns[1])]
    assert answer.schema["large"] == pl.Decimal(38, 0)
    assert answer.schema["none"] == answer.schema["turns"] == pl.Int64
    large = str(9 * 10**18 * turns[0])
    assert json.loads(asked(capsys, dataset, query, "--json"))["rows"][0]["large"] == large
    assert asked(capsys, dataset, query, "--csv").splitlines()[1] == f"{large},,{turns[1]}"
    assert large in asked(capsys, dataset, query)


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("select stp from spans", 'Candidate bindings: "step"'),
        ("select 1 from spans s where s.durations > 1", "`describe TABLE` lists the columns"),
        ("from span", 'Did you mean "spans"? (the tables are '),
        ("selec 1", 'syntax error at or near "selec"'),
        ("select quantle(duration_sec, 0.5) from spans", 'Did you mean "quantile"'),
        ("", "one query at a time, got 0 statements"),
        ("from steps; from turns", "one query at a time, got 2 statements"),
        ("drop view steps", "only SELECT, WITH, DESCRIBE and SUMMARIZE, not DROP"),
        ("copy steps to 'x.csv'", "not COPY"),
        ("set enable_external_access = true", "not SET"),
        ("attach 'x.db'", "not ATTACH"),
        ("install httpfs", "not LOAD"),
    ],
)
def test_a_wrong_query_is_answered_in_one_line(query, said, dataset, capsys):
    printed = asked(capsys, dataset, query, code=2)
    assert said in printed
    assert printed.count("\n") == 1


@pytest.mark.parametrize(
    "place",
    ["'/etc/hostname'", "read_text('/etc/hostname')", "'https://example.com/x.parquet'", "glob('/*')"],
)
def test_a_query_reads_no_other_file_and_no_network(place, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InstrumentError):
        run.sql(f"select * from {place}")


def test_a_table_of_the_caller_is_not_one_of_the_run(run):
    mine = pl.DataFrame({"a": [1]})
    with pytest.raises(InstrumentError, match="Table with name mine does not exist"):
        run.sql("from mine")
    assert len(mine) == 1


def test_the_command_prints_a_table_csv_json_or_writes_parquet(logs, dataset, tmp_path, capsys):
    query = (
        "select step, p99_sec, make_timestamptz(start_us) as at from steps where not validate order by step"
    )
    table = asked(capsys, dataset, query)
    assert "6 rows" in table
    lines = asked(capsys, dataset, query, "--csv").splitlines()
    assert lines[0] == "step,p99_sec,at"
    answer = json.loads(asked(capsys, logs, query, "--json"))
    assert [row["step"] for row in answer["rows"]] == [1, 2, 3, 4, 5, 6]
    assert answer["rows"][0]["at"].startswith("2026-01-05T08:00:00")
    assert "6 rows in" in asked(capsys, dataset, query, "--parquet", tmp_path / "a.parquet")
    assert len(pl.read_parquet(tmp_path / "a.parquet")) == 6
    assert "nothing is overwritten" in asked(
        capsys, dataset, query, "--parquet", tmp_path / "a.parquet", code=2
    )
    nowhere = tmp_path / "none" / "a.parquet"
    assert "existing folder" in asked(capsys, dataset, query, "--parquet", nowhere, code=2)


def test_a_disk_that_is_full_is_an_error_and_leaves_no_half_file(logs, dataset, tmp_path, capsys):
    nothing_fits = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)); "
    nothing_fits += "from sglang_instrument.cli.main import main; sys.exit(main(sys.argv[1:]))"
    for command in (
        ["sql", dataset, "from spans", "--parquet", tmp_path / "a.parquet"],
        ["export", logs, "--parquet", tmp_path / "made"],
    ):
        done = subprocess.run(
            [sys.executable, "-c", nothing_fits, *map(str, command)], capture_output=True, text=True
        )
        assert (done.returncode, "too large" in done.stderr.lower()) == (2, True), done.stderr
        assert done.stderr.startswith("sglang-instrument: ")
    assert not list(tmp_path.glob("*a.parquet*"))


def test_a_long_answer_is_cut_on_the_terminal_alone(dataset, capsys):
    assert "200 of 1,000 rows are shown" in asked(capsys, dataset, "select * from range(1000)")
    assert len(asked(capsys, dataset, "select * from range(1000)", "--csv").splitlines()) == 1001


def test_control_characters_in_an_answer_are_escaped(dataset, capsys):
    query = "select chr(27) || '[31m' as word, 'two' || chr(10) || 'lines' as lines"
    assert "\\x1b" in asked(capsys, dataset, query)
    assert asked(capsys, dataset, query, "--csv") == "word,lines\n\\x1b[31m,two\\nlines\n"


def test_a_file_that_is_not_regular_is_not_waited_for(logs, tmp_path):
    export_dataset(open_run(logs), tmp_path / "dataset")
    [records] = (tmp_path / "dataset/parts").glob("*/records.parquet")
    records.unlink()
    os.mkfifo(records)
    with pytest.raises(LogError, match="not a regular file but a FIFO"):
        open_run(tmp_path / "dataset").sql("from steps")


def test_without_duckdb_the_command_that_installs_it_is_named(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(InstrumentError, match=r"SQL needs duckdb: \S+ -m pip install .*'duckdb[<>]"):
        run.sql("from steps")
