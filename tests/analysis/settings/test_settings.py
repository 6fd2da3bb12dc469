"""Settings that a process recorded reach `summary`, `compare` and `sql`; only what was set differs."""

import json
import shutil

import pytest

import sglang_instrument
from sglang_instrument import span, step
from sglang_instrument.analysis.settings.differences import differing_settings
from sglang_instrument.analysis.settings.main_settings import main_settings
from sglang_instrument.analysis.settings.recorded import Setting, settings_of
from sglang_instrument.cli.main import main
from sglang_instrument.recording.settings.configuration import keep_settings

SERVER_ARGS = {"tp_size": 2, "mem_fraction_static": 0.88, "schedule_policy": "fcfs", "port": 30000}
CONFIG = {"actor_rollout_ref": {"rollout": {"n": 8, "mode": "async", "response_length": 1024}}}


def record(root, name, server_args, config):
    """Record a step of a worker that was given these settings, and return its folder."""
    sglang_instrument.install(log_dir=root, experiment=name, trainers="none")
    keep_settings("server_args", server_args)
    keep_settings("config", config)
    with step(1), span("total_step_duration"), span("async_rollout_request_complete", request_id="r1"):
        pass
    sglang_instrument.uninstall()
    return root / name


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("logs")
    faster = {**SERVER_ARGS, "mem_fraction_static": 0.5, "schedule_policy": "lpm", "port": 30001}
    return record(root, "a", SERVER_ARGS, CONFIG), record(root, "b", faster, CONFIG)


def asked(capsys, *words):
    code = main([*map(str, words), "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_the_settings_of_the_engine_and_the_trainer_are_read_with_ours_and_the_machine_s(runs):
    settings = settings_of(runs[0])
    assert {setting.source for setting in settings} == {
        *("server_args", "config", "sglang_instrument", "machine", "packages")
    }
    assert {setting.process for setting in settings} == {"worker_0"}
    values = {(setting.source, setting.name): setting.value for setting in settings}
    assert values["server_args", "mem_fraction_static"] == 0.88
    assert values["config", "actor_rollout_ref.rollout.n"] == 8
    assert values["sglang_instrument", "EXPERIMENT"] == "a"


def test_uninstall_forgets_them(runs):
    assert settings_of(runs[0]) != settings_of(runs[1])
    assert {setting.name for setting in settings_of(runs[1]) if setting.source.endswith("_2")} == set()


def test_compare_begins_with_the_settings_that_differ_but_for_ports_and_names(runs, capsys):
    _, answer = asked(capsys, "compare", *runs)
    assert answer["settings"] == [
        {
            "roles": ["worker"],
            "source": "server_args",
            "name": "mem_fraction_static",
            "a": [0.88],
            "b": [0.5],
        },
        {
            "roles": ["worker"],
            "source": "server_args",
            "name": "schedule_policy",
            "a": ["fcfs"],
            "b": ["lpm"],
        },
    ]
    main(["compare", *map(str, runs)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "settings that differ"
    assert lines[3].split() == ["worker", "server_args", "mem_fraction_static", "0.88", "0.5"]


def test_compare_says_where_none_differ_and_where_none_were_recorded(runs, capsys, tmp_path):
    main(["compare", str(runs[0]), str(runs[0])])
    assert "settings: the same in both runs" in capsys.readouterr().out
    bare = record(tmp_path, "bare", None, None)
    for described in (bare / "processes").iterdir():
        described.unlink()
    main(["compare", str(runs[0]), str(bare)])
    assert "settings: not recorded in both runs" in capsys.readouterr().out


def test_summary_shows_those_that_matter_for_speed(runs, capsys):
    main(["summary", str(runs[0])])
    [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("settings:")]
    shown = "tp 2, memory share 0.88, scheduling fcfs, samples a prompt 8, response limit 1024"
    assert line.startswith(f"settings: {shown}; `sglang-instrument sql {runs[0]} ")


def test_sql_has_them_as_text_and_as_numbers(runs, capsys):
    query = "select setting, value, number from settings where source = 'server_args' order by setting"
    _, answer = asked(capsys, "sql", runs[0], query)
    assert answer["rows"] == [
        {"setting": "mem_fraction_static", "value": "0.88", "number": 0.88},
        {"setting": "port", "value": "30000", "number": 30000.0},
        {"setting": "schedule_policy", "value": "fcfs", "number": None},
        {"setting": "tp_size", "value": "2", "number": 2.0},
    ]


def setting(process, name, value, source="server_args"):
    return Setting(process, process.partition("_")[0], source, name, value)


def test_servers_that_differ_show_all_their_values_and_true_is_no_one():
    servers = [
        setting("server_0", "tp_size", 1),
        setting("server_1", "tp_size", 4),
        setting("server_2", "tp_size", 4),
    ]
    assert main_settings(servers) == {"tp": [4, 1]}
    [difference] = differing_settings(servers, [setting("server_0", "tp_size", True)])
    assert (difference.a, difference.b) == ([1, 4], [True])


def test_a_source_that_one_run_did_not_record_is_no_difference():
    assert differing_settings([setting("server_0", "tp_size", 1)], [setting("worker_0", "tp_size", 2)]) == []
    config = [setting("server_0", "tp_size", 1), setting("server_0", "n", 1, source="config")]
    assert differing_settings(config, config[:1]) == []


def names_in_order(answer):
    return [row["logs"].rpartition("/")[2] for row in answer["runs"]]


def test_runs_are_sorted_by_a_setting_and_show_others(runs, capsys):
    root = runs[0].parent
    code, answer = asked(capsys, "runs", root, "--sort", "mem_fraction_static", "--setting", "rollout.n")
    assert code == 0
    assert names_in_order(answer) == ["b", "a"]
    assert [row["settings"] for row in answer["runs"]] == [
        {"mem_fraction_static": [0.5], "rollout.n": [8]},
        {"mem_fraction_static": [0.88], "rollout.n": [8]},
    ]
    assert names_in_order(asked(capsys, "runs", root, "--sort", "schedule_policy")[1]) == ["a", "b"]
    assert names_in_order(asked(capsys, "runs", root, "--sort", "begun_us")[1]) == ["a", "b"]
    assert main(["runs", str(root), "--setting", "memory share"]) == 0
    assert "memory share" in capsys.readouterr().out


def test_an_unknown_setting_is_an_error_with_the_next_step(runs, capsys):
    assert main(["runs", str(runs[0].parent), "--sort", "mem_fraction"]) == 2
    message = capsys.readouterr().err
    assert "'mem_fraction'" in message
    assert "`sql`" in message
    assert "begun" in message


def test_a_run_that_a_newer_one_overwrote_has_no_settings(runs, tmp_path, capsys):
    folder = tmp_path / "exp"
    shutil.copytree(runs[0], folder)
    for path in (runs[1] / "step_1").iterdir():
        target = folder / "step_1" / path.name
        target.write_bytes(target.read_bytes() + path.read_bytes())
    shutil.copytree(runs[1] / "processes", folder / "processes", dirs_exist_ok=True)
    _, answer = asked(capsys, "runs", folder, "--setting", "schedule_policy")
    assert [row["settings"]["schedule_policy"] for row in answer["runs"]] == [[], ["lpm"]]
