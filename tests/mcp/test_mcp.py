"""A real client of the Model Context Protocol asks a real server; runs are synthetic, with planted causes."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from anyio.from_thread import start_blocking_portal
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from sglang_instrument.cli.main import main
from sglang_instrument.mcp.fitting import MOST_BYTES, fitted
from sglang_instrument.testing import SlowEngine
from sglang_instrument.testing.causes import (
    BlockedLoop,
    LongReply,
    SlowCall,
    SlowPart,
    SlowReward,
    SlowTools,
    StandStill,
)
from sglang_instrument.testing.synthetic import write_run
from sglang_instrument.testing.usual_run import usual_shape

ROOT = Path(__file__).parents[2]
TOOLS = {"runs", "verdict", "why", "table", "sql", "settings", "watch_until", "compare", "advise"}
#: Beside a worker whose engine is slow in another step, the verdict names these second, or not at all: the
#: cause, and the phase in which its time is.
SMALLER = {
    "tools": (SlowTools(3, 1, seconds=8.0), "tool"),
    "reward": (SlowReward(3, 1, seconds=15.0), "reward"),
    "standstill": (StandStill(3, 1, seconds=25.0), "generate"),
    "preprocess": (SlowPart(3, 1, event="preprocessing_duration", seconds=9.0), "preprocess"),
    "broadcast": (SlowPart(3, None, event="broadcast_duration", seconds=9.0), "broadcast"),
    "reply": (LongReply(3, 1, tokens=2500), "generate"),
    "tool call": (SlowCall(3, 1, kind="tool", seconds=25.0), "tool"),
    "blocked loop": (BlockedLoop(3, 1, seconds=12.0), "generate"),
}

PARTS = {"generate": "engine"}  # of the ledger, where it has another name than the phase


class Agent:
    """Calls tools as a coding agent does, by the official SDK over the standard streams."""

    def __init__(self, portal, client):
        self._portal, self._client = portal, client
        self.tools = portal.call(client.list_tools).tools

    def call(self, tool, /, **arguments):
        """Return what a tool says, as (is an error, text)."""
        result = self._portal.call(self._client.call_tool, tool, arguments)
        [content] = result.content
        assert len(content.text.encode()) < MOST_BYTES
        return result.is_error, content.text

    def answer(self, tool, /, **arguments):
        """Return an answer of a tool."""
        is_error, text = self.call(tool, **arguments)
        assert not is_error, text
        return json.loads(text)

    def error(self, tool, /, **arguments):
        """Return the error of a tool."""
        is_error, text = self.call(tool, **arguments)
        assert is_error, text
        return text


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    """Two runs, one with a planted cause, and a run outside of their folder."""
    folder = tmp_path_factory.mktemp("mcp")
    shape = replace(usual_shape(5), steps=6, requests=12)
    write_run(folder / "logs/clean", shape)
    write_run(folder / "logs/slow", shape, [SlowEngine(4, 2, factor=4.0)])
    write_run(folder / "secret", replace(shape, steps=1))
    (folder / "logs/away").symlink_to(folder / "secret")
    return folder / "logs"


@pytest.fixture(scope="module")
def agent(logs):
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    parameters = StdioServerParameters(
        command=sys.executable, args=["-m", "sglang_instrument", "mcp", str(logs)], env={"PYTHONPATH": path}
    )
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(Client(stdio_client(parameters))) as client,
    ):
        yield Agent(portal, client)


def test_every_tool_is_listed_with_what_it_does_and_only_reads(agent):
    assert {tool.name for tool in agent.tools} == TOOLS
    assert all(tool.description and tool.annotations.read_only_hint for tool in agent.tools)


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("runs", {}),
        ("verdict", {"run": "slow"}),
        ("why", {"run": "slow", "step": 4}),
        ("why", {"run": "slow", "step": 4, "worker": 2}),
        ("table", {"run": "slow", "name": "requests", "where": "step = 4", "order_by": "duration_sec desc"}),
        ("sql", {"run": "slow", "query": "select count(*) as spans from spans"}),
        ("settings", {"run": "slow"}),
        ("watch_until", {"run": "slow", "timeout_sec": 1}),
        ("compare", {"a": "clean", "b": "slow"}),
        ("advise", {"run": "slow"}),
    ],
)
def test_every_tool_answers_with_the_command_that_shows_the_same(agent, capfd, tool, arguments):
    answer = agent.answer(tool, **arguments)
    for command in answer["command"].split("; "):
        name, *typed = shlex.split(command)
        assert name == "sglang-instrument"
        assert main(typed) in (0, 1, 3), capfd.readouterr().err


def test_the_planted_cause_is_told_with_its_evidence(agent):
    [row] = [row for row in agent.answer("runs")["runs"] if row["run"] == "slow"]
    assert row["steps"] == 6
    first = agent.answer("verdict", run="slow")["findings"][0]
    assert (first["step"], first["worker"]) == (4, 2)
    assert first["lost_sec"] > 0
    assert first["evidence"]
    step = agent.answer("why", run="slow", step=4)
    assert step["workers"][0]["worker"] == 2
    assert max(step["step_sec_by_part"], key=step["step_sec_by_part"].get) == "engine"
    assert step["slowest_requests"][0]["worker"] == 2


def test_what_the_log_lacks_is_said(agent):
    for answer in (agent.answer("verdict", run="slow"), agent.answer("settings", run="clean")):
        said = " ".join(answer["not_observed"])
        assert "engines' own processes: SGLANG_INSTRUMENT=1 where they start" in said
        assert "settings" in said
        assert "rewards" not in said


@pytest.mark.parametrize("name", SMALLER)
def test_why_names_what_the_verdict_names_second(name, agent, logs, request):
    cause, phase = SMALLER[name]
    run = f"two {name}"
    shape = replace(usual_shape(7), steps=6, requests=12)
    write_run(logs / run, shape, [SlowEngine(5, 2, factor=8.0), cause])
    request.addfinalizer(lambda: shutil.rmtree(logs / run))  # `runs` judges each run
    first = agent.answer("verdict", run=run)["findings"][0]
    assert (first["step"], first["worker"]) == (5, 2)
    step = agent.answer("why", run=run, step=3)
    if cause.worker is not None:
        assert step["workers"][0]["worker"] == cause.worker
    assert phase in list(step["workers"][0]["phases"])[:3]  # the largest first
    named = {(row["cause"], row.get("worker")) for row in step["findings"]}
    of_cause = "slow-call" if name == "tool call" else cause.cause
    assert (of_cause, cause.worker) in named or step["step_sec_by_part"][PARTS.get(phase, phase)] > 5, step


@pytest.mark.parametrize(
    ("tool", "arguments", "right"),
    [
        ("verdict", {"run": "../secret"}, "the runs are: "),
        ("verdict", {"run": "/etc"}, "the runs are: "),
        ("verdict", {"run": "away"}, "the runs are: "),
        ("verdict", {"run": "slow@../x"}, "a launch is named by its id"),
        ("verdict", {"run": "s" * 10_000}, "the runs are: "),
        ("why", {"run": "slow", "step": 99}, "99"),
        ("table", {"run": "slow", "name": "passwords"}, "the tables are: "),
        ("table", {"run": "slow", "name": "requests", "limit": 10**9}, "limit must be 1 to 200"),
        (
            "table",
            {"run": "slow", "name": "requests", "order_by": "1; drop table x"},
            "order_by must be a column",
        ),
        (
            "table",
            {"run": "slow", "name": "requests", "where": "1=1) union select * from read_csv('/etc/passwd'"},
            "",
        ),
        ("sql", {"run": "slow", "query": "select * from read_text('/etc/passwd')"}, ""),
        ("sql", {"run": "slow", "query": "copy requests to '/tmp/stolen.csv'"}, ""),
        ("sql", {"run": "slow", "query": "x" * 5000}, "at most 4,000 characters"),
        ("watch_until", {"run": "slow", "problem": "boredom"}, "problem must be one of any, hang"),
        ("watch_until", {"run": "slow", "timeout_sec": 1e9}, "timeout_sec must be over 0 and at most 600"),
        ("watch_until", {"run": "slow", "timeout_sec": float("nan")}, ""),
    ],
)
def test_hostile_arguments_get_an_error_that_says_what_is_right(agent, tool, arguments, right):
    text = agent.error(tool, **arguments)
    assert right in text
    assert "root:" not in text
    assert "Traceback" not in text
    assert agent.answer("table", run="slow", name="steps", limit=1)["rows"]  # it goes on


def test_a_link_in_a_run_that_leads_out_is_refused(agent, logs, tmp_path):
    (tmp_path / "worker_9.jsonl").write_text("{}\n")
    shape = replace(usual_shape(5), steps=1, requests=4)
    write_run(logs / "linked", shape)
    (logs / "linked/step_1/worker_9.jsonl").symlink_to(tmp_path / "worker_9.jsonl")
    assert "is a link that leads out of" in agent.error("verdict", run="linked")
    (logs / "linked/step_1/worker_9.jsonl").unlink()
    assert agent.answer("verdict", run="linked")["verdict"]


def test_it_returns_in_time_and_can_be_asked_again(agent):
    for _ in range(2):
        answer = agent.answer("watch_until", run="slow", problem="step_end", timeout_sec=0.5)
        assert answer["waited_for"] == "step_end"
        assert answer["step"]["step"] == 6


def test_answers_that_do_not_fit_count_what_is_left_out_and_name_the_next_call(agent):
    rows, arguments = [], {"run": "slow", "name": "requests", "where": "step < 3", "limit": 20}
    while arguments:
        answer = agent.answer("table", **arguments)
        rows += answer["rows"]
        following = answer.get("next", {})
        assert following.pop("tool", "table") == "table"
        arguments = following and {**following, "limit": 20}
    places = {(row["step"], row["worker"], row["request_id"]) for row in rows}
    assert len(places) == len(rows) == 2 * 4 * 12


def test_a_run_that_cannot_be_read_is_listed_with_the_reason(agent, logs, tmp_path):
    shape = replace(usual_shape(5), steps=1, requests=4)
    write_run(logs / "broken", shape)
    (logs / "broken/step_1/out").symlink_to(tmp_path)
    rows = {row["run"]: row for row in agent.answer("runs")["runs"]}
    (logs / "broken/step_1/out").unlink()
    assert "is a link that leads out of" in rows["broken"]["error"]
    assert rows["slow"]["steps"] == 6


def test_a_large_run_fits(tmp_path):
    rows = [{"worker": rank, "duration_sec": rank / 7, "sentence": "x" * 300} for rank in range(256 * 2000)]
    text = fitted({"workers": rows, "command": "c", "not_observed": ["n"]}, {"tool": "table", "offset": 0})
    answer = json.loads(text)
    assert len(text.encode()) < MOST_BYTES
    assert answer["left_out"]["workers"] + len(answer["workers"]) == len(rows)
    assert answer["next"] == {"tool": "table", "offset": len(answer["workers"])}
    assert answer["not_observed"] == ["n"]


def test_no_promise_is_kept_for_an_agents_question(agent, logs):
    agent.answer("advise", run="clean")
    assert not list((logs / "clean").rglob("promises.jsonl"))


def test_the_skill_is_one_that_a_coding_agent_can_load(capsys):
    assert main(["mcp", "--skill"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("---\nname: rollouts\ndescription: ")
    assert all(f"`{tool}" in text for tool in TOOLS)


def test_without_a_folder_it_says_what_it_needs(capsys, tmp_path):
    assert main(["mcp"]) == 2
    assert "mcp needs FOLDER" in capsys.readouterr().err
    assert main(["mcp", str(tmp_path / "absent")]) == 2
    assert "no such folder" in capsys.readouterr().err


def test_the_server_ends_when_its_client_leaves(logs):
    command = [sys.executable, "-m", "sglang_instrument", "mcp", str(logs)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, cwd=ROOT, timeout=300)
    assert (done.returncode, done.stdout) == (0, b"")
