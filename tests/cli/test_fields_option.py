"""`requests --fields` and `events --fields` show any field of the log, summed, or the last text."""

import json
import os
import time

import pytest
from logged import recorded_events
from own_run import record_requests

from sglang_instrument import bind, event, span, uninstall
from sglang_instrument.cli.main import main
from sglang_instrument.testing import synthetic_run


@pytest.fixture
def recorded(install):
    folder = install()
    record_requests()
    return folder


@pytest.fixture
def asked(capsys):
    def ask(command, *arguments, code=0):
        assert main([command, *map(str, arguments)]) == code
        printed = capsys.readouterr()
        return printed.err if code else printed.out

    return ask


def rows_of(asked, command, folder, *arguments):
    return json.loads(asked(command, folder, "--json", *arguments))[command]


def logged(folder, group):
    """Return by group the values of the field `tool_calls`, from the lines of the log."""
    values = {}
    for record in recorded_events(
        map(json.loads, (folder / "step_12/worker_0.jsonl").read_text().splitlines())
    ):
        if "tool_calls" in record["extra"]:
            values.setdefault(group(record), []).append(record["extra"]["tool_calls"])
    return values


def test_numbers_are_summed_over_the_events_of_a_request(recorded, asked):
    rows = rows_of(
        asked, "requests", recorded, "--fields", "tool_calls,tool_calls:max", "--fields", "tool_calls:mean"
    )
    expected = logged(recorded, lambda record: record["extra"]["request_id"])
    assert {row["request_id"]: row["fields"] for row in rows} == {
        request: {
            "tool_calls": sum(values),
            "tool_calls:max": max(values),
            "tool_calls:mean": sum(values) / len(values),
        }
        for request, values in expected.items()
    }
    assert len(expected) == 2


def test_numbers_are_summed_over_the_events_of_a_name(recorded, asked):
    rows = rows_of(asked, "events", recorded, "--fields", "tool_calls,tokens")
    fields = {row["event"]: row["fields"] for row in rows}
    assert fields["parse"] == {
        "tool_calls": sum(logged(recorded, lambda record: record["event"])["parse"]),
        "tokens": None,
    }
    assert fields["cache_hit"] == {"tool_calls": None, "tokens": 4 * 17}
    assert fields["async_rollout_request_complete"] == {"tool_calls": None, "tokens": None}


def test_of_texts_lists_and_objects_the_last_one_is_shown(recorded, asked):
    for row in rows_of(asked, "requests", recorded, "--fields", "parser,nested,big"):
        assert row["fields"]["parser"] == "json1"
        assert json.loads(row["fields"]["nested"]) == {"a": {"b": [1, None]}}
        assert row["fields"]["big"] == str(10**30)  # the recorder writes such integers as text


def test_true_counts_as_one(recorded, asked):
    [parse] = [
        row
        for row in rows_of(asked, "events", recorded, "--fields", "flag,flag:mean")
        if row["fields"]["flag"]
    ]
    assert parse["fields"] == {"flag": 4, "flag:mean": 1.0}


def test_a_name_may_hold_quotes_dots_and_colons(recorded, asked):
    rows = rows_of(asked, "requests", recorded, "--fields", 'we"ird.na:me:sum')
    assert [row["fields"] for row in rows] == [{'we"ird.na:me:sum': 5.0}] * 2


def test_the_table_has_a_column_for_each_field(recorded, asked):
    printed = asked("requests", recorded, "--fields", "tool_calls,parser").splitlines()
    assert printed[1].split()[-2:] == ["tool_calls", "parser"]
    assert sorted(line.split()[-2:] for line in printed[3:-1]) == [["27", "json1"], ["7", "json1"]]
    printed = asked("events", recorded, "--fields", "tool_calls").splitlines()
    assert {line.split()[0]: line.split()[-1] for line in printed[3:-1]} == {
        "async_rollout_request_complete": "-",
        "parse": "34",
        "cache_hit": "-",
    }


@pytest.mark.parametrize("command", ["requests", "events"])
def test_an_unknown_field_is_answered_with_the_nearest_and_where_all_are_listed(command, recorded, asked):
    error = asked(command, recorded, "--fields", "tool_call", code=2)
    assert "no field 'tool_call'; the nearest: 'tool_calls'" in error
    assert f'`sglang-instrument sql {recorded} "from fields"` lists all' in error


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--fields", "parser:max"], "parser:max: parser is never a number; ask for parser alone"),
        (["--fields", "tool_calls,,x"], "must be NAME or NAME:max"),
        (["--fields", "tool_calls", "--cdf"], "--fields adds columns to the list of requests"),
        (["--fields", "nan"], "no field 'nan'"),
    ],
)
def test_a_question_without_an_answer_says_why(arguments, said, recorded, asked):
    assert said in asked("requests", recorded, *arguments, code=2)


def test_a_field_of_several_steps_is_of_the_chosen_one(install, asked):
    folder = install()
    for step in (1, 2):
        with bind(step=step, request_id="r"), span("async_rollout_request_complete", own=step):
            pass
    uninstall()
    rows = rows_of(asked, "requests", folder, "--fields", "own")
    assert {row["step"]: row["fields"]["own"] for row in rows} == {1: 1, 2: 2}
    [row] = rows_of(asked, "requests", folder, "--fields", "own", "--step", 2)
    assert row["fields"] == {"own": 2}


def test_lines_of_others_with_long_and_deep_values_are_shown(recorded, asked):
    with (recorded / "step_12/worker_0.jsonl").open("a") as file:
        deep = "[" * 900 + "]" * 900
        for value in (
            '"' + "y" * 10_000_000 + '"',
            "1e999",
            "NaN",
            deep,
            "1" + "0" * 400,
            '"\\ud800"',
            '"\\u001b[31m"',
        ):
            line = {
                "timestamp": "2026-11-20T20:15:10+00:00",
                "event": "odd",
                "extra": {"own": "?"},
                "workid": 0,
            }
            file.write(json.dumps(line).replace('"?"', value) + "\n")
    assert "y" * 100 not in asked("events", recorded, "--fields", "own")
    assert "\x1b" not in asked("events", recorded, "--fields", "own,parser")
    [odd] = [row for row in rows_of(asked, "events", recorded, "--fields", "own") if row["event"] == "odd"]
    assert odd["count"] == 7
    assert odd["fields"] == {"own": "\x1b[31m"}


def test_a_request_shows_all_fields_of_all_its_events(recorded, asked):
    events = json.loads(asked("requests", recorded, "--request", "r7", "--json"))["events"]
    lines = recorded_events(map(json.loads, (recorded / "step_12/worker_0.jsonl").read_text().splitlines()))
    expected = [record for record in lines if record["extra"]["request_id"] == "r7"]
    assert len(events) == len(expected) == 5
    for name in ("parse", "cache_hit", "async_rollout_request_complete"):
        fields = [
            {key: value for key, value in record["extra"].items() if key not in ("request_id", "turn")}
            for record in expected
            if record["event"] == name
        ]
        assert [event["fields"] for event in events if event["event"] == name] == fields
    printed = asked("requests", recorded, "--request", "r7")
    assert 'tool_calls = 3, parser = "json0"' in printed
    assert "cache_hit, turn 2: tokens = 17" in printed


def test_an_instant_event_lies_inside_the_span_around_it(install, asked):
    folder = install()
    with bind(step=1, request_id="r"), span("async_rollout_request_complete"), span("parse"):
        event("cache_hit", tokens=17)
        time.sleep(0.002)
    uninstall()
    events = json.loads(asked("requests", folder, "--request", "r", "--json"))["events"]
    depths = {row["event"]: (row["depth"], row["duration_sec"] is None) for row in events}
    assert depths == {
        "async_rollout_request_complete": (0, False),
        "parse": (1, False),
        "cache_hit": (2, True),
    }
    [line] = [
        line for line in asked("requests", folder, "--request", "r").splitlines() if "cache_hit  " in line
    ]
    assert line.startswith("    cache_hit")
    assert line.rstrip().endswith("|")


def test_fields_of_a_request_from_others_cannot_write_to_the_terminal(recorded, asked):
    with (recorded / "step_12/worker_0.jsonl").open("a") as file:
        long = "y" * 1_000_000
        extra = {"request_id": "r7", "\x1b[31m": "\x1b]0;title\x07", "long": long, "deep": [[[[1]]]]}
        line = {"timestamp": "2026-11-20T20:15:10+00:00", "event": "odd", "extra": extra, "workid": 0}
        file.write(json.dumps(line) + "\n")
    printed = asked("requests", recorded, "--request", "r7")
    assert "\x1b" not in printed
    assert "y" * 100 not in printed
    events = json.loads(asked("requests", recorded, "--request", "r7", "--json"))["events"]
    assert [row["fields"]["long"] for row in events if row["event"] == "odd"] == [long]


def test_requests_of_pruned_steps_keep_their_fields(tmp_path, asked, capsys):
    logs = synthetic_run(tmp_path / "exp", steps=4, workers=1, requests=2, seed=4)
    for path in logs.rglob("*.jsonl"):
        os.utime(path, (0, 0))  # nobody writes to it any more
    asked("prune", logs, "--keep-steps", 2, "--keep-slowest", 0, "--yes")
    assert main(["requests", str(logs), "--fields", "actual_response_tokens", "--json"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    for row in json.loads(printed.out)["requests"]:
        assert row["fields"] == {"actual_response_tokens": row["response_tokens"]}
