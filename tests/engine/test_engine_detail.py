"""`engine_detail` sets how much SGLang's own processes record; roles and ranks name their files."""

import os
import subprocess
import sys

import pytest

import sglang_instrument
from sglang_instrument.errors import ConfigError, TableError
from sglang_instrument.patching.tables.reading import parse_table
from sglang_instrument.recording.measure import identity, scopes

CHILD = """
from sglang_instrument.recording.measure import identity

identity.learn("scheduler", None, 1)
print(identity.file_name("scheduler", identity.process_worker()))
"""
ALWAYS, BATCHES = {"sglang/engine", "sglang/settings"}, "sglang/batches"
REQUESTS = {"sglang/requests", "sglang/disaggregation", "sglang/weights", "sglang/gauges"}


@pytest.mark.parametrize(
    ("detail", "applied"),
    [
        ("off", ALWAYS),
        ("requests", ALWAYS | REQUESTS),
        ("batches", {*ALWAYS, *REQUESTS, BATCHES}),
    ],
)
def test_tables_are_applied_as_far_as_the_setting_goes(install, detail, applied):
    install(engine_detail=detail)
    tables = {patch["table"] for patch in sglang_instrument.status()["patches"]}
    assert {table for table in tables if table.startswith("sglang/")} == applied


def test_requests_are_recorded_unless_something_else_is_asked_for(install):
    install()
    tables = {patch["table"] for patch in sglang_instrument.status()["patches"]}
    assert tables >= REQUESTS
    assert BATCHES not in tables


def test_another_detail_is_refused_with_those_that_there_are(install):
    with pytest.raises(ConfigError, match="'off', 'requests', 'batches'"):
        install(engine_detail="all")


def test_a_table_says_at_which_detail_it_is_applied():
    content = {"trainer": "x", "patch": [{"target": "m:f", "region": [{"event": "e"}]}]}
    table = parse_table("t", content)
    assert all(table.is_wanted(detail, scalars=False) for detail in ("off", "requests", "batches"))
    with pytest.raises(TableError, match="engine_detail must be one of 'requests', 'batches'"):
        parse_table("t", {**content, "engine_detail": "off"})


def test_a_process_of_a_group_has_its_rank_in_the_group_in_its_files_name():
    identity.learn("scheduler", 1, 0)
    assert identity.file_name("scheduler", 1) == "scheduler_1_tp0"
    assert identity.file_name("worker", 1) == "worker_1"  # it does not affect other roles
    identity.forget()
    assert identity.file_name("scheduler", 1) == "scheduler_1"


def test_a_scheduler_without_a_rank_has_that_of_the_worker_it_belongs_to(monkeypatch):
    monkeypatch.setenv("RANK", "3")
    identity.learn("scheduler", None, 0)
    assert scopes.scope_for(None, None, None, False).worker == 3
    assert identity.file_name("scheduler", 3) == "scheduler_3_tp0"


def test_what_a_server_starts_has_the_servers_number(monkeypatch, install):
    install()
    identity.learn("server", 2)
    printed = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "scheduler_2_tp1"
    sglang_instrument.uninstall()
    assert identity.SERVER not in os.environ


def test_a_server_of_another_kind_and_what_it_starts_are_called_so(monkeypatch, install):
    monkeypatch.setattr(identity.ray_actor, "actor_name", lambda: "sglang_server_reward_0_0")
    install()
    identity.learn("server", 0)
    assert identity.file_name("server", 0) == "server_0_reward"
    assert identity.file_name("worker", 0) == "worker_0"
    printed = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "scheduler_0_reward_tp1"


def test_a_process_keeps_its_role_when_it_is_switched_off_and_on(install):
    install()
    identity.learn("server", 2)
    sglang_instrument.uninstall()
    folder = install()
    with sglang_instrument.span("engine_start"):
        pass
    sglang_instrument.uninstall()
    assert [path.name for path in folder.rglob("engine/*.jsonl")] == ["server_2.jsonl"]


def test_a_role_that_install_is_given_later_wins_and_goes_with_it(install):
    install()
    identity.learn("server", 2)
    sglang_instrument.uninstall()
    install(role="trainer")
    assert (identity.process_role(), identity.SERVER in os.environ) == ("trainer", False)
    sglang_instrument.uninstall()
    install()
    assert (identity.process_role(), os.environ[identity.SERVER]) == ("server", "2")


def test_a_process_that_is_told_its_role_repeatedly_notices_a_new_one():
    def name_of(*asked):
        identity.learn(*asked)
        return identity.file_name("scheduler", identity.process_worker())

    assert [name_of("scheduler", 2, 1), name_of("scheduler", 2, 1)] == ["scheduler_2_tp1", "scheduler_2_tp1"]
    assert [name_of("scheduler", 3, 1), name_of("scheduler", 2, 1)] == ["scheduler_3_tp1", "scheduler_2_tp1"]
    identity.forget()
    assert name_of("scheduler", 2, 1) == "scheduler_2_tp1"


def test_a_process_with_an_inherited_number_is_not_asked_for_it_again(monkeypatch):
    monkeypatch.setattr(identity.ray_actor, "may_run", lambda: True)
    plan = object()
    identity.learn("scheduler", None, 0, teller=plan)
    assert not identity.knows_all_of(plan)  # its actor may get a name
    monkeypatch.setenv("RANK", "3")
    identity.learn("scheduler", None, 0, teller=plan)
    assert identity.knows_all_of(plan)


def test_an_actor_that_has_no_name_yet_learns_its_number_when_it_has_one(monkeypatch):
    monkeypatch.setattr(identity.ray_actor, "may_run", lambda: True)
    names = iter([None, None, "sglang_server_4"])
    monkeypatch.setattr(identity.ray_actor, "actor_name", lambda: next(names))
    identity.learn("scheduler", None, 0)
    assert identity.process_worker() == 0
    identity.learn("scheduler", None, 0)
    identity.learn("scheduler", None, 0)
    assert identity.process_worker() == 4
