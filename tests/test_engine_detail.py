"""How much SGLang's own processes record, and what their files are called."""

import os
import subprocess
import sys

import pytest

import sglang_instrument
from sglang_instrument.errors import ConfigError, TableError
from sglang_instrument.patching.tables import parse_table
from sglang_instrument.recording import context

CHILD = """
from sglang_instrument.recording import context

context.name_process("scheduler", None, 1)
print(context.file_name("scheduler", context.default_worker()))
"""
ALWAYS, REQUESTS, BATCHES = "sglang/engine", "sglang/requests", "sglang/batches"


@pytest.mark.parametrize(
    ("detail", "applied"),
    [
        ("off", {ALWAYS}),
        ("requests", {ALWAYS, REQUESTS}),
        ("batches", {ALWAYS, REQUESTS, BATCHES}),
    ],
)
def test_tables_are_applied_as_far_as_the_setting_goes(install, detail, applied):
    install(engine_detail=detail)
    tables = {patch["table"] for patch in sglang_instrument.status()["patches"]}
    assert {table for table in tables if table.startswith("sglang/")} == applied


def test_requests_are_recorded_unless_something_else_is_asked_for(install):
    install()
    tables = {patch["table"] for patch in sglang_instrument.status()["patches"]}
    assert REQUESTS in tables
    assert BATCHES not in tables


def test_another_detail_is_refused_with_those_that_there_are(install):
    with pytest.raises(ConfigError, match="'off', 'requests', 'batches'"):
        install(engine_detail="all")


def test_a_table_says_at_which_detail_it_is_applied():
    content = {"trainer": "x", "patch": [{"target": "m:f", "region": [{"event": "e"}]}]}
    assert all(parse_table("t", content).is_wanted(detail) for detail in ("off", "requests", "batches"))
    with pytest.raises(TableError, match="engine_detail must be one of 'requests', 'batches'"):
        parse_table("t", {**content, "engine_detail": "off"})


def test_a_process_of_a_group_has_its_rank_in_the_group_in_its_files_name():
    context.set_process_role("worker")
    context.name_process("scheduler", 1, 0)
    assert context.file_name("scheduler", 1) == "scheduler_1_tp0"
    assert context.file_name("worker", 1) == "worker_1"  # of another role it says nothing
    context.set_process_role("worker")
    assert context.file_name("scheduler", 1) == "scheduler_1"


def test_a_scheduler_without_a_rank_has_that_of_the_worker_it_belongs_to(monkeypatch):
    monkeypatch.setenv("RANK", "3")
    context.set_process_role("worker")
    context.name_process("scheduler", None, 0)
    assert context.scope_for(None, None, None, False).worker == 3
    assert context.file_name("scheduler", 3) == "scheduler_3_tp0"
    context.set_process_role("worker")


def test_what_a_server_starts_has_the_servers_number(monkeypatch, install):
    install()
    context.name_process("server", 2)
    printed = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "scheduler_2_tp1"
    sglang_instrument.uninstall()
    assert context.SERVER not in os.environ
