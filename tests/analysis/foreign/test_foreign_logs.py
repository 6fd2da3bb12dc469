"""Logs of other projects give the verdict that was planted, say what they cannot show, and cannot harm."""

import json
import os
import pickle
import sqlite3
import zipfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import foreign_runs
import polars as pl
import pytest
from alike import differs

from sglang_instrument.analysis import foreign, open_run
from sglang_instrument.analysis.dataset.export import export_dataset
from sglang_instrument.analysis.foreign.registry import FORMATS
from sglang_instrument.analysis.reading.columns import COLUMNS
from sglang_instrument.analysis.verdict.verdict import judge
from sglang_instrument.cli.main import main
from sglang_instrument.errors import LogError
from sglang_instrument.testing import SlowEngine
from sglang_instrument.testing.usual_run import usual_shape

WRITERS = (
    "slime_traces",
    "verl_traces",
    "verl_metrics",
    "areal_traces",
    "sglang_requests",
    "server_log",
    "verl_console",
    "slime_timers",
)
#: Formats in which each request, or each call, of the planted run is told.
WHOLE = ("slime_traces", "verl_traces", "areal_traces")
#: A word of the finding: formats without tokens cannot tell a slow engine from longer replies.
TELLS = {
    "areal_traces": "31 s more in engine",
    "verl_metrics": "trainer_generate took 1.9 times the usual",
    "verl_console": "trainer_generate took 1.9 times the usual",
    "slime_timers": "train_wait took 1.9 times the usual",
}
HOW_TO = Path(__file__).parents[3] / "docs/how-to/other-logs.md"


@pytest.fixture(scope="module")
def planted():
    return foreign_runs.planted()


@pytest.fixture(scope="module")
def clean():
    """A run of the same shape without a cause."""
    return foreign_runs.planted(5, causes=[])


@pytest.fixture(scope="module")
def few():
    """A run of few requests with a cause, for whatever its numbers do not matter to."""
    shape = replace(usual_shape(3, steps=3), workers=2, requests=6)
    return foreign_runs.planted(shape=shape, causes=[SlowEngine(3, None, 4.0)])


def written(home, run):
    """Write a run in all formats; return their paths."""
    return {name: getattr(foreign_runs, name)(home / name, run) for name in WRITERS}


@pytest.fixture(scope="module")
def logs(planted, tmp_path_factory):
    return written(tmp_path_factory.mktemp("foreign"), planted)


@pytest.fixture(scope="module")
def small_logs(few, tmp_path_factory):
    return written(tmp_path_factory.mktemp("small"), few)


@pytest.fixture(scope="module")
def runs(logs):
    return {name: open_run(path) for name, path in logs.items()}


@pytest.mark.parametrize("name", WRITERS)
def test_one_planted_run_gives_one_verdict_in_each_format(runs, name):
    verdict = judge(runs[name])
    assert "tep 5" in verdict.sentence.partition(".")[0]
    assert TELLS.get(name, "engine time per token was 2.0 times the usual") in verdict.sentence


@pytest.mark.parametrize("name", WRITERS)
def test_a_run_without_a_cause_accuses_nobody(tmp_path, name, clean):
    assert judge(open_run(getattr(foreign_runs, name)(tmp_path / "log", clean))).findings == []


def test_a_long_run_without_a_cause_accuses_no_server_and_tells_of_no_reply(tmp_path):
    shape = replace(usual_shape(3, steps=60), requests=16)
    clean = foreign_runs.planted(shape=shape, causes=[])
    assert judge(open_run(foreign_runs.server_log(tmp_path, clean))).findings == []


@pytest.mark.parametrize("name", WRITERS)
def test_each_reader_says_what_its_format_cannot_show(runs, name):
    health = runs[name].health
    assert f"read as {health.read_as}" in health.sentence()
    assert health.cannot_show
    assert all(phrase in health.sentence() for phrase in health.cannot_show)
    assert (health.torn, health.foreign, health.unreadable) == (0, 0, {})


@pytest.mark.parametrize("name", WHOLE)
def test_requests_are_those_that_were_planted(runs, planted, name):
    requests = runs[name].digest.requests.sort("step", "start_us", "end_us")
    truth = sorted(
        foreign_runs.requests_of(planted), key=lambda request: (request.step, request.start, request.end)
    )
    assert requests["step"].to_list() == [request.step for request in truth]
    for column, values in (
        ("start_us", [request.start * 1e6 for request in truth]),
        ("end_us", [request.end * 1e6 for request in truth]),
        ("engine_sec", [sum(call.end - call.start for call in request.calls) for request in truth]),
        ("turns", [len(request.calls) for request in truth]),
    ):
        assert requests[column].to_list() == pytest.approx(
            values, abs=1_000 if column.endswith("us") else 0.01
        )
    tokens = None if name == "areal_traces" else sum(request.tokens for request in truth)
    assert (requests["response_tokens"].sum() if requests["response_tokens"].count() else None) == tokens


def test_slime_s_dump_tells_rewards_ends_groups_and_versions(runs, planted):
    truth = list(foreign_runs.requests_of(planted))
    requests = runs["slime_traces"].digest.requests
    assert requests["reward"].sum() == pytest.approx(sum(request.reward for request in truth))
    assert set(requests["finish_reason"]) == {"stop"}
    records = runs["slime_traces"].executor.log.rows
    whole = records.filter(pl.col("event").cast(pl.String) == "async_rollout_request_complete")
    assert whole["group"].n_unique() == 24
    assert whole["weight_version"].cast(pl.Int64).to_list() == whole["step"].to_list()


def test_sglang_s_export_has_a_request_for_each_call(runs, planted):
    calls = sum(len(request.calls) for request in foreign_runs.requests_of(planted))
    requests = runs["sglang_requests"].digest.requests
    assert len(requests) == calls
    assert requests["worker"].unique().sort().to_list() == [0, 1, 2, 3]


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize(
    "command",
    [
        ["summary"],
        ["summary", "--step", "2"],
        ["requests"],
        ["turns"],
        ["workers"],
        ["events"],
        ["lengths"],
        ["gaps"],
        ["check"],
    ],
    ids=" ".join,
)
def test_commands_answer_from_each_format(small_logs, name, command, capsys):
    asked = main([command[0], str(small_logs[name]), *command[1:]])
    printed = capsys.readouterr()
    assert asked in (0, 1)
    assert "Traceback" not in printed.err
    assert printed.out.strip()


@pytest.mark.parametrize("name", WRITERS)
def test_the_report_is_made_of_each_format(small_logs, name, tmp_path, capsys):
    page = tmp_path / "report.html"
    assert main(["report", str(small_logs[name]), "-o", str(page)]) == 0
    assert "which cannot show" in page.read_text()


@pytest.mark.parametrize("name", WRITERS)
def test_records_read_as_lines_of_ours_are_the_same(runs, name):
    run = runs[name]
    again = run.read_records(step=5)
    rows = run.executor.log.rows.filter(step=5)
    columns = ["event", "worker", "request_id", "turn", "start_us", "end_us", "response_tokens", "reward"]
    ours, theirs = (table.select(columns).cast({"event": pl.String}).sort(columns) for table in (again, rows))
    assert ours.equals(theirs)


@pytest.fixture(scope="module")
def small_runs(small_logs):
    return {name: open_run(path) for name, path in small_logs.items()}


@pytest.fixture(scope="module")
def datasets(small_runs, tmp_path_factory):
    home = tmp_path_factory.mktemp("datasets")
    for name, run in small_runs.items():
        export_dataset(run, home / name)
    return {name: home / name for name in small_runs}


@pytest.mark.parametrize("name", WRITERS)
def test_a_dataset_of_a_foreign_log_answers_as_the_log_does(small_logs, datasets, name, capsys):
    for command in (["summary"], ["turns"], ["servers"], ["events"], ["check"]):
        answers = []
        for path in (small_logs[name], datasets[name]):
            assert main([command[0], str(path), "--json"]) == 0
            answer = json.loads(capsys.readouterr().out.replace(str(path), "LOGS"))  # commands name it
            answer.pop("folder")
            answer.get("health", {}).pop("files", None)  # a dataset has one a step and worker
            answers.append(answer)
        assert not differs(*answers), command


@pytest.mark.parametrize("name", WRITERS)
def test_a_dataset_of_a_foreign_log_has_its_ends_and_its_own_fields(small_runs, datasets, name):
    dataset, rows = open_run(datasets[name]), small_runs[name].executor.log.rows
    columns = ["event", "worker", "step", "start_us", "end_us", "duration_sec"]
    ours, theirs = (
        table.select(columns).cast({"event": pl.String}).sort(columns) for table in (dataset.records, rows)
    )
    assert ours.equals(theirs)
    of_spans = dataset.sql("from spans").select(columns).sort(columns)
    assert of_spans.equals(theirs)
    fields = [
        field for field in rows.columns if field not in COLUMNS and rows[field].null_count() < len(rows)
    ]
    counts = dict(dataset.sql("select field, sum(count)::bigint from fields group by field").rows())
    assert {field: counts.get(field) for field in fields} == {
        field: len(rows) - rows[field].null_count() for field in fields
    }


@pytest.mark.parametrize("name", WRITERS)
def test_nothing_is_written_beside_a_foreign_log(small_logs, name):
    def state():
        return sorted((str(path), path.stat().st_mtime_ns) for path in small_logs[name].rglob("*"))

    before = state()
    run = open_run(small_logs[name])
    run.read_spans(step=2)
    assert state() == before


@pytest.mark.parametrize("name", [name for name in WRITERS if name != "areal_traces"])
def test_a_single_file_is_read_as_its_folder(small_logs, name):
    first = min(path for path in small_logs[name].rglob("*") if path.is_file())
    run = open_run(first)
    assert not run.digest.steps.is_empty()
    assert run.health.files == 1


def test_an_unknown_format_is_an_error_that_says_where_the_known_ones_are_listed(tmp_path, capsys):
    (tmp_path / "notes.log").write_text("hello\n")
    for path in (tmp_path, tmp_path / "notes.log"):
        assert main(["summary", str(path)]) == 2
        assert "`sglang-instrument help logs`" in capsys.readouterr().err
    assert main(["help", "logs"]) == 0
    listed = " ".join(capsys.readouterr().out.split())
    assert [kind.name for kind in FORMATS if kind.name not in listed or kind.files not in listed] == []
    (tmp_path / "none").mkdir()
    with pytest.raises(LogError, match="the folder is empty"):
        open_run(tmp_path / "none")


@pytest.mark.parametrize(
    ("cut", "reason"),
    [
        (-1000, "not a whole file of torch.save"),
        (None, "not a dump of slime's rollout data: it has no list `samples`"),
    ],
)
def test_a_log_of_which_nothing_can_be_read_gives_the_reason(planted, tmp_path, capsys, cut, reason):
    path = tmp_path / "rollout_0.pt"
    foreign_runs.torch_save(path, {"model": "a checkpoint" * 1000})
    path.write_bytes(path.read_bytes()[:cut])
    assert main(["summary", str(tmp_path)]) == 2
    assert f"rollout_0.pt: {reason}" in capsys.readouterr().err


def test_each_reader_is_registered_and_described():
    claims = {kind.claims.__module__.rpartition(".")[2] for kind in FORMATS}
    home = Path(foreign.__file__).parent
    with_claims = {path.stem for path in home.rglob("*.py") if "\ndef claims(" in path.read_text()}
    assert claims == with_claims
    assert len({kind.name for kind in FORMATS}) == len(FORMATS)
    assert len(WRITERS) == len(FORMATS)


def test_the_export_says_which_option_gives_times(tmp_path):
    record = {"request_parameters": "{}", "id": "a", "finish_reason": {"type": "stop"}, "e2e_latency": 1.0}
    (tmp_path / "sglang-request-metrics-20260105_08.log").write_text(json.dumps(record) + "\n")
    with pytest.raises(LogError, match="--enable-metrics"):
        open_run(tmp_path)


def test_versions_of_the_weights_are_the_steps_where_they_are_numbered(tmp_path, few):
    path = foreign_runs.sglang_requests(tmp_path, few) / "sglang-request-metrics-20260105_08.log"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    half = len(lines) // 2
    for number, line in enumerate(lines):
        line["weight_version"] = "7" if number < half else "8"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = open_run(path)
    assert run.steps == [7, 8]
    assert any("a version of the weights" in phrase for phrase in run.health.cannot_show)


def test_areal_s_sessions_alone_are_cut_into_stretches(logs, tmp_path):
    run = open_run(logs["areal_traces"] / "session_tracer")
    assert run.steps == list(range(10))
    assert any("perf_tracer.enabled=true" in phrase for phrase in run.health.cannot_show)


def test_areal_s_traces_are_placed_even_if_their_file_was_copied(planted, tmp_path):
    folder = foreign_runs.areal_traces(tmp_path / "log", planted)
    traces = next(folder.rglob("traces-r0.jsonl"))
    os.utime(traces)  # now: months after the sessions
    run = open_run(folder)
    truth = [request.step for request in foreign_runs.requests_of(planted)]
    counts = run.digest.requests.sort("start_us")["step"].value_counts().sort("step")["count"].to_list()
    assert counts == pytest.approx([truth.count(step) for step in range(10)], abs=2)


@pytest.mark.parametrize(
    "prefix",
    [
        "[2026-01-05 08:00:{:02}] ",
        "[2026-01-05 08:00:{:02} TP0] ",
        "[2026-01-05 08:00:{:02} DP1 TP0] ",
        "[2026-01-05 08:00:{:02}.125] ",
        "\x1b[36m(SGLangHttpServer pid=4711, ip=10.0.0.2)\x1b[0m [2026-01-05 08:00:{:02} TP0] ",
        "(pid=12) [2026-01-05 08:00:{:02}] ",
    ],
)
@pytest.mark.parametrize("kind", ["Decode batch, ", "Decode batch. ", "Decode batch [40], "])
def test_lines_of_servers_are_known_in_all_their_forms(tmp_path, prefix, kind):
    lines = [
        f"{prefix.format(second)}{kind}#running-req: 4, #token: 90, token usage: 0.00, cuda graph: False, "
        f"gen throughput (token/s): 160.00, #queue-req: 0"
        for second in range(1, 20)
    ]
    (tmp_path / "server.log").write_text("INFO: Started\n" + "\n".join(lines) + "\n")
    run = open_run(tmp_path)
    assert run.health.foreign == 0
    calls = run.digest.requests
    assert len(calls) == 4
    assert (calls["response_tokens"] / calls["duration_sec"]).to_list() == pytest.approx([40] * 4, rel=0.02)


HOSTILE = [
    b"",
    b"\n",
    b"null",
    b"[]",
    b"{",
    b'{"id": 3}',
    b"\xff\xfe\x00",
    b'{"a":' * 3000,
    b"{" + b" " * 70_000_000,
]
WRONG = [None, True, -1, 2**70, 1e308, float("nan"), "x", "\x1b]0;owned\x07\ud800", [], {}, [[]], {"a": {}}]


@pytest.mark.parametrize("name", ["verl_metrics", "areal_traces", "sglang_requests"])
def test_wrong_lines_are_counted_and_cost_no_others(few, tmp_path, name):
    folder = getattr(foreign_runs, name)(tmp_path / "log", few)
    before = open_run(folder)
    path = max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    raw = path.read_bytes()
    path.write_bytes(raw + b"\n".join(HOSTILE) + b'\n{"torn": ')
    foreign_runs.set_changed(path, foreign_runs.EPOCH + 700)
    after = open_run(folder)
    assert after.health.torn + after.health.foreign == len(HOSTILE) - 2 + 1
    assert after.health.records == before.health.records


@pytest.mark.parametrize("name", ["verl_metrics", "areal_traces", "sglang_requests"])
def test_values_of_any_type_never_raise(few, tmp_path, name):
    folder = getattr(foreign_runs, name)(tmp_path / "log", few[:2])
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        first = json.loads(path.read_text().splitlines()[-1])
        with path.open("a") as file:
            for key in first:
                for value in WRONG:
                    file.write(json.dumps({**first, key: value}) + "\n")
    run = open_run(folder)
    judge(run)
    assert run.health.sentence()


def mutilated(value, wrong, key):
    """Return a copy in which each value under a key is a wrong one."""
    if isinstance(value, dict):
        return {name: wrong if name == key else mutilated(child, wrong, key) for name, child in value.items()}
    return [mutilated(child, wrong, key) for child in value] if isinstance(value, list) else value


@pytest.mark.parametrize("wrong", WRONG, ids=repr)
def test_slime_s_samples_may_hold_anything(few, tmp_path, wrong):
    folder = foreign_runs.slime_traces(tmp_path / "log", few[:2])
    path = folder / "rollout_0.pt"
    with zipfile.ZipFile(path) as archive:
        dump = pickle.loads(archive.read("rollout_0/data.pkl"))
    dump["samples"] = dump["samples"][:8]
    event = dump["samples"][0]["trace"]["events"][0]
    keys = [*dump, *dump["samples"][0], *dump["samples"][0]["trace"], *event, "attrs", "completion_tokens"]
    for number, key in enumerate(keys, 10):
        foreign_runs.torch_save(folder / f"rollout_{number}.pt", mutilated(dump, wrong, key))
    foreign_runs.torch_save(folder / "rollout_99.pt", wrong)
    run = open_run(folder)
    judge(run)
    assert 1 in run.steps


class Evil:
    """Runs a command when it is unpickled."""

    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


def test_a_file_of_torch_cannot_run_anything(few, tmp_path):
    folder = foreign_runs.slime_traces(tmp_path / "log", few[:2])
    mark = tmp_path / "ran"
    foreign_runs.torch_save(folder / "rollout_7.pt", {"rollout_id": 7, "samples": [Evil(f"touch {mark}")]})
    foreign_runs.torch_save(folder / "rollout_8.pt", Evil(f"touch {mark}"))
    (folder / "rollout_9.pt").write_bytes((folder / "rollout_0.pt").read_bytes()[:4000])
    with zipfile.ZipFile(folder / "rollout_6.pt", "w") as archive:
        archive.writestr("rollout_6/data.pkl", b"\x80\x02garbage" * 10)
    run = open_run(folder)
    assert not mark.exists()
    assert run.steps == [0, 1]
    assert {"rollout_6.pt", "rollout_8.pt"} <= run.health.unreadable.keys()
    assert run.health.foreign == 1


def test_a_database_whose_tables_are_views_is_not_read(few, tmp_path):
    folder = foreign_runs.verl_traces(tmp_path / "log", few[:1])
    with closing(sqlite3.connect(folder / "mlruns.db")) as database:
        database.execute("alter table spans rename to other")
        endless = "with recursive n(x) as (select 1 union all select x + 1 from n) select x from n"
        database.execute(f"create view spans as {endless}")
        database.commit()
    with pytest.raises(LogError, match="help logs"):
        open_run(folder)


@pytest.mark.parametrize("wrong", [None, -1, 2**62, 1.5, "x", "\x1b[31m", b"\xff"], ids=repr)
def test_a_database_may_hold_anything(few, tmp_path, wrong):
    folder = foreign_runs.verl_traces(tmp_path / "log", few[:2])
    columns = ("parent_span_id", "name", "status", "start_time_unix_nano", "end_time_unix_nano", "content")
    with closing(sqlite3.connect(folder / "mlruns.db")) as database:
        for number, column in enumerate(columns):
            where = f"rowid % 100 = {number}"
            database.execute(f"update spans set {column} = ? where {where}", (wrong,))
        for number, key in enumerate(("step", "sample_index", "validate")):
            where = f"key = '{key}' and rowid % 50 = {number}"
            database.execute(f"update trace_tags set value = ? where {where}", (wrong,))
        database.commit()
    run = open_run(folder)
    judge(run)
    assert 0 in run.steps


def test_only_regular_files_are_opened(few, tmp_path):
    folder = foreign_runs.sglang_requests(tmp_path / "log", few[:2])
    os.mkfifo(folder / "sglang-request-metrics-20260105_09.log")
    (folder / "sglang-request-metrics-20260105_10.log").symlink_to("/dev/zero")
    (folder / "sglang-request-metrics-20260105_11.log").symlink_to("nowhere")
    assert open_run(folder).health.files == 1


def test_nothing_that_is_read_reaches_the_terminal_unescaped(few, tmp_path, capsys):
    command = "\x1b]0;owned\x07\x9b2J\r[bold red]z[/]"
    folder = foreign_runs.slime_traces(tmp_path / f"log{command.replace('/', '')}", few)
    for path in sorted(folder.glob("*.pt")):
        with zipfile.ZipFile(path) as archive:
            dump = pickle.loads(archive.read(f"{path.stem}/data.pkl"))
        for sample in dump["samples"]:
            for event in sample["trace"]["events"]:
                if event["name"].startswith("tool"):
                    event["name"] = f"tool{command}"
        foreign_runs.torch_save(path, dump)
    (folder / f"other{command.replace('/', '')}.log").write_text(command)
    for asked in ("summary", "requests", "turns", "events"):
        assert main([asked, str(folder)]) == 0
    printed = capsys.readouterr()
    assert not set("\x1b\x07\x9b\r") & set(printed.out + printed.err)


def test_the_page_names_each_format():
    page = HOW_TO.read_text()
    names = (
        "rollout_N.pt",
        "mlruns.db",
        "trainer.logger",
        "sessions-rN.jsonl",
        "--export-metrics-to-file",
        "server",
    )
    assert all(name in page for name in names)


def test_a_format_without_tokens_or_servers_has_no_numbers_of_them(few, tmp_path, capsys):
    foreign_runs.areal_traces(tmp_path, few)
    assert main(["waste", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["total"]["generated_tokens"] is None
    assert main(["turns", str(tmp_path), "--json"]) == 0
    assert {row["response_tokens"] for row in json.loads(capsys.readouterr().out)["turns"]} == {None}
    assert main(["weights", str(tmp_path), "--lineage"]) == 0
    assert "no engine call has a lineage" in capsys.readouterr().out


def test_a_side_of_the_loop_that_the_log_lacks_has_no_share(logs, capsys):
    assert main(["loop", str(logs["verl_metrics"])]) == 0
    printed = capsys.readouterr().out
    assert "the trainer waits for the rollout: 35.2 s a step, 54 %" in printed
    assert "waits for the trainer" not in printed
