"""Fields and events of the user's own reach `sql`; nothing that a line holds is dropped."""

import json
import os
import shutil

import msgspec
import pytest
from logged import recorded_events
from own_run import ODD, record_requests

from sglang_instrument import SGLangLogManager
from sglang_instrument.analysis import open_run
from sglang_instrument.analysis.dataset.columns import VIEWS
from sglang_instrument.analysis.dataset.export import export_dataset
from sglang_instrument.analysis.reading.all_fields import text_of
from sglang_instrument.analysis.reading.records.fields import ColumnFields, all_typed, typed
from sglang_instrument.analysis.reading.records.lines import Line, Rejects, decode, decode_whole
from sglang_instrument.cli.main import main
from sglang_instrument.schema import CONTROL_EVENTS
from sglang_instrument.testing import synthetic_run

STAMP = b'"timestamp":"2026-11-20T20:15:10.133688+00:00",'


@pytest.fixture
def recorded(install):
    folder = install()
    record_requests()
    return folder


@pytest.fixture
def written(tmp_path):
    """A log of the reference's class, with keys of the user's own."""
    folder = tmp_path / "logs/by_class"
    manager, path = SGLangLogManager(), folder / "step_3/worker_0.jsonl"
    manager.log(path, "total_step_duration", duration=2.0, workid=0, step=3, cluster="a", queue=[1])
    manager.log(path, "tool_execution", duration=1.0, extra={"own": 1}, workid=0, step=3)
    manager.close_all()
    return folder


def test_a_field_of_the_users_own_can_be_asked_in_sql(recorded):
    answer = open_run(recorded).sql(
        "select sum((extra->>'tool_calls')::int) as calls from spans where event = 'parse'"
    )
    assert answer["calls"].to_list() == [3 + 4 + 13 + 14]


def test_an_instant_event_of_the_users_own_is_a_row_of_spans(recorded):
    rows = open_run(recorded).sql(
        "select request_id, turn, duration_sec, steps_sec, span, extra->>'tokens' as tokens from spans"
        " where event = 'cache_hit' order by start_us"
    )
    expected = [(request, turn, None, None, None, "17") for request in ("r7", "r8") for turn in (0, 1)]
    assert rows.rows() == expected


def test_extra_is_the_text_of_the_log(recorded):
    lines = (recorded / "step_12/worker_0.jsonl").read_text().splitlines()
    spans = open_run(recorded).sql("select extra, other_keys from spans")
    assert len(spans) == len(recorded_events(map(json.loads, lines))) == 10
    for text in spans["extra"]:
        assert any(f'"extra":{text},"workid"' in line for line in lines)
    assert spans["other_keys"].to_list() == [None] * 10


def test_the_view_fields_names_every_field_once_a_type(recorded):
    rows = open_run(recorded).sql("from fields")
    assert rows.columns == list(VIEWS["fields"])
    of_parse = {field: rest for name, field, *rest in rows.rows() if name == "parse"}
    assert of_parse["tool_calls"] == ["number", 4, 14.0]
    assert of_parse["parser"] == ["string", 4, None]
    assert of_parse["flag"] == ["boolean", 4, None]
    assert of_parse["nested"] == ["object", 4, None]
    assert of_parse['we"ird.na:me'] == ["number", 4, 2.5]
    assert of_parse.keys() == {*ODD, "tool_calls", "parser", "request_id", "turn"}


def test_keys_that_no_version_knew_are_kept(written):
    rows = open_run(written).sql("select event, extra, other_keys from spans order by event desc")
    assert rows.rows() == [
        ("total_step_duration", None, '{"cluster": "a", "queue": [1]}'),
        ("tool_execution", '{"own":1}', None),
    ]
    named = open_run(written).sql("select field, type from fields order by field")
    assert named.rows() == [("cluster", "string"), ("own", "number"), ("queue", "array")]


def test_control_records_of_any_version_are_rows_of_control(recorded, tmp_path):
    path = recorded / "step_12/worker_0.jsonl"
    with path.open("a") as file:
        file.write(
            f'{{{STAMP.decode()}"event":"open_now","extra":{{"open":{{}},"later":[1]}},"workid":0,"new":2}}\n'
        )
    in_log = [json.loads(line) for line in path.read_text().splitlines()]
    events = [line["event"] for line in in_log if line["event"] in CONTROL_EVENTS]
    columns = "event, extra, other_keys, step, worker, run_id"
    asked = f"select {columns} from control where file = 'step_12/worker_0.jsonl'"
    rows = open_run(recorded).sql(asked)
    assert sorted(rows["event"]) == sorted(events)
    assert ('{"open":{},"later":[1]}', '{"new": 2}', 12, 0) in [row[1:5] for row in rows.rows()]
    assert rows["run_id"].unique().to_list() == [in_log[0]["extra"]["run_id"]]
    export_dataset(open_run(recorded), tmp_path / "dataset")
    assert sorted(open_run(tmp_path / "dataset").sql(asked).rows()) == sorted(rows.rows())


LINES = [
    b'"event":"a","duration_sec":1.0,"extra":{"turn":1,"own":2},"start_us":5',
    b'"event":"a","extra":5',
    b'"event":"a","extra":null',
    b'"event":"a"',
    rb'"event":"a","extra":{"x":"\ud800","y":1}',
    b'"event":"a","extra":{"x":NaN,"turn":2}',
    b'"event":"a","extra":{"x":1e999}',
    b'"event":"a","extra":{"x":"\xff"}',
    b'"event":"a","extra":{"turn":"x","own":1}',
    b'"event":"a","extra":{"x":' + b"9" * 60 + b"}",
    b'"event":"a","extra":{"x":' + b"[" * 5000 + b"]" * 5000 + b"}",
    b'"event":"a","extra":{"x":"' + b"y" * 10_000_000 + b'"}',
    b'"event":"a","extra":{\n"x":1}',
    b'"event":"a","start_us":1' + b"0" * 40,
    b'"event":"a","step":"x","who":{"x":NaN}',
    b'"event":"a","text":4,"others":5',
    b'"torn',
]


def known(lines):
    return [[getattr(line, name) for name in Line.__struct_fields__] for line in lines]


@pytest.mark.parametrize("separately", [True, False])
def test_lines_are_decoded_alike_with_their_text_and_without(separately):
    whole = [b"{" + STAMP + line + b"}" for line in LINES] + [b"foreign", b"{}{}"]
    for chunk in whole if separately else [b"\n".join(whole)]:
        plain, texts = Rejects(), Rejects()
        assert known(decode(chunk, plain)) == known(decode_whole(chunk, texts))
        assert plain == texts


@pytest.mark.parametrize("line", LINES, ids=lambda line: str(line[:40]))
def test_every_text_is_json_and_what_is_json_stays_as_it_stands(line):
    whole = b"{" + STAMP + line + b"}"
    for record in decode_whole(whole, Rejects()):
        for text in filter(None, (text_of(record), record.others)):
            json.loads(text, parse_constant=pytest.fail)
        try:
            msgspec.json.decode(whole, type=dict[str, msgspec.Raw])
            whole.decode()
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
        assert text_of(record) is None or f'"extra":{text_of(record)}' in whole.decode()


def test_what_is_no_json_in_a_line_costs_itself(written):
    with (written / "step_3/worker_0.jsonl").open("ab") as file:
        file.writelines(b"{" + STAMP + line + b',"workid":0}\n' for line in LINES)
    run = open_run(written)
    assert run.sql("select sum((extra->>'own')::int) as own from spans")["own"].to_list() == [1 + 2 + 1]
    assert ("a", "x", "null") in run.sql("select event, field, type from fields").rows()
    longest = run.sql("select max(length(extra)) as longest from spans")["longest"]
    assert longest.to_list() == [10_000_008]


def test_a_field_of_another_type_costs_itself_and_no_other_field():
    odd = [
        b'"extra":{"request_id":"a","turn":"x","reward":1.5,"own":1}',
        b'"extra":{"request_id":7,"turn":2,"reward":1e999}',
        b'"extra":[1]',
        b'"extra":null',
        b'"extra":{"request_id":"b","turn":' + b"9" * 30 + b',"x":NaN}',
    ]
    lines = decode(b"\n".join(b'{"event":"a",' + STAMP + line + b"}" for line in odd), Rejects())
    fields = [typed(line.extra, ColumnFields) for line in lines]
    assert [(known.request_id, known.turn, known.reward) for known in fields] == [
        ("a", None, 1.5),
        (7, 2, None),
        (None, None, None),
        (None, None, None),
        ("b", None, None),
    ]
    assert all_typed([line.extra for line in lines], ColumnFields) == fields


@pytest.mark.parametrize("duration", ["1e999", "1e36", "NaN", '"long"', "-1"])
def test_an_impossible_duration_costs_itself_and_not_the_run(written, duration):
    with (written / "step_3/worker_0.jsonl").open("a") as file:
        file.write(f'{{{STAMP.decode()}"event":"odd","duration_sec":{duration},"workid":0,"step":3}}\n')
    rows = open_run(written).sql("select event, duration_sec from spans where event = 'odd'")
    assert rows.rows() == [("odd", None)]


def test_an_export_writes_pruned_spans_with_their_fields(tmp_path, capsys):
    logs, dataset = synthetic_run(tmp_path / "exp", steps=6, workers=2, requests=4, seed=4), tmp_path / "out"
    for path in logs.rglob("*.jsonl"):
        os.utime(path, (0, 0))  # nobody writes to it any more
    export_dataset(open_run(logs), dataset)
    spans = "select step, count(*) as rows, count(extra) as texts from spans group by step order by step"
    before = open_run(dataset).sql(spans)
    shutil.rmtree(dataset)
    assert main(["prune", str(logs), "--keep-steps", "2", "--keep-slowest", "0", "--yes"]) == 0
    assert not (logs / "step_1").exists()
    export_dataset(open_run(logs), dataset)
    assert open_run(dataset).sql(spans).equals(before)
    assert before["texts"].min() > 0


def test_a_command_that_asks_for_no_field_reads_none(recorded):
    assert "extra" not in open_run(recorded).records.columns


def test_rows_are_the_same_in_a_dataset(recorded, tmp_path):
    shutil.copytree(recorded, tmp_path / "copy")
    export_dataset(open_run(tmp_path / "copy"), tmp_path / "out")
    query = "select event, extra from spans order by start_us, event, extra"
    assert open_run(tmp_path / "out").sql(query).equals(open_run(recorded).sql(query))
