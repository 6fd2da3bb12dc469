"""Agents that work for other agents: one tree whose parts add up, with the critical path through it."""

import json
import os
import subprocess
import sys

import pytest

import sglang_instrument
from sglang_instrument import bind, span
from sglang_instrument.analysis.answers.agents import agent_table, path_of, request_trees
from sglang_instrument.analysis.answers.routing.server_calls import server_calls
from sglang_instrument.analysis.questions import open_run
from sglang_instrument.cli.main import main
from sglang_instrument.report.html.slowest import slowest_requests

#: A planner with three workers of two calls each. Which worker is the slowest is planted.
PROGRAM = """
import asyncio, sys
import sglang_instrument
from sglang_instrument import bind, span

has_spans = sys.argv[1] == "spans"

async def call(rid, turn, sec, tokens):
    with span("turn_engine_call", turn=turn, rid=rid) as record:
        await asyncio.sleep(sec)
        record.add(prompt_tokens=100, completion_tokens=tokens)

async def work(number):
    for turn in range(2):
        await call(f"w{number}-{turn}", turn, 0.2 if number == 1 else 0.01, 10)

async def worker(number):
    with bind(agent="worker", request_id=f"w{number}"):
        if has_spans:
            with span("async_rollout_request_complete"):
                await work(number)
        else:
            await work(number)

async def planner():
    with bind(step=1, worker=0), span("total_step_duration"):
        with bind(agent="planner", request_id="r7"), span("async_rollout_request_complete"):
            await call("r7-0", 0, 0.05, 7)
            await asyncio.gather(*(worker(number) for number in range(3)))
            await call("r7-1", 1, 0.05, 5)

sglang_instrument.install()
asyncio.run(planner())
"""


@pytest.fixture(scope="module", params=["spans", "ids"])
def run(request, tmp_path_factory):
    """A run whose workers log spans of whole requests, or only bind ids."""
    folder = tmp_path_factory.mktemp("agents")
    environment = {"SGLANG_INSTRUMENT_LOG_DIR": str(folder), "EXPERIMENT_NAME": "run"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, request.param],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return open_run(folder / "run", cached=False)


def test_there_is_one_tree_of_the_planner_and_its_workers(run):
    trees = request_trees(run.everything)
    assert trees["tree"].unique().to_list() == [0]
    assert trees.select("request_id", "agent", "parent_request", "depth", "children").rows() == [
        ("r7", "planner", None, 0, 3),
        *((f"w{number}", "worker", "r7", 1, 0) for number in range(3)),
    ]
    assert trees["turns"].to_list() == [2, 2, 2, 2]
    assert trees["response_tokens"].to_list() == [12, 20, 20, 20]


def test_the_parts_add_up(run):
    trees = request_trees(run.everything)
    root = trees.row(0, named=True)
    assert sum(trees["path_sec"]) == pytest.approx(root["duration_sec"], abs=2e-6)
    assert root["engine_sec"] + root["agents_sec"] + root["other_sec"] == pytest.approx(
        root["duration_sec"], abs=1e-3
    )
    for row in trees.to_dicts()[1:]:
        assert row["engine_sec"] + row["other_sec"] == pytest.approx(row["duration_sec"], abs=1e-3)


def test_the_critical_path_goes_through_the_slowest_worker(run):
    path = dict(request_trees(run.everything).select("request_id", "path_sec").iter_rows())
    assert path["w1"] >= 0.4  # as long as its two calls slept
    assert path["r7"] >= 0.1
    assert path["w0"] + path["w2"] < path["w1"]


def test_tokens_and_time_by_agent(run):
    agents = agent_table(run.everything, server_calls(run)).to_dicts()
    by_name = {row["agent"]: row for row in agents}
    assert {name: (row["requests"], row["calls"]) for name, row in by_name.items()} == {
        "worker": (3, 6),
        "planner": (1, 2),
    }
    assert {name: row["prompt_tokens"] for name, row in by_name.items()} == {"worker": 600, "planner": 200}
    assert {name: row["response_tokens"] for name, row in by_name.items()} == {"worker": 60, "planner": 12}
    assert sum(row["engine_share"] for row in agents) == pytest.approx(1)


def test_requests_prints_the_tree_and_turns_the_agents(run, capsys):
    assert main(["requests", str(run.folder), "--tree"]) == 0
    lines = [line.split()[:2] for line in capsys.readouterr().out.splitlines()]
    assert [line for line in lines if line and line[0] in ("r7", "w0", "w1", "w2")] == [
        ["r7", "planner"],
        *([f"w{number}", "worker"] for number in range(3)),
    ]
    assert main(["requests", str(run.folder), "--tree", "--request", "w1", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["request_trees"]) == 4  # the whole tree
    assert main(["turns", str(run.folder)]) == 0
    assert "\nagents" in capsys.readouterr().out


def test_the_report_shows_the_tree_with_each_of_its_requests(run):
    for row in slowest_requests(run):
        assert [other["request_id"] for other in row["tree"]] == ["r7", "w0", "w1", "w2"]


def test_spans_of_opentelemetry_have_the_planner_as_their_parent(run, tmp_path, capsys):
    assert main(["export", str(run.folder), "--otlp", str(tmp_path / "spans.jsonl")]) == 0
    spans = [
        span
        for line in (tmp_path / "spans.jsonl").read_text().splitlines()
        for resource in json.loads(line)["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]
    agents = [span for span in spans if span["name"].startswith("invoke_agent")]
    (planner,) = [span for span in agents if span["name"] == "invoke_agent planner"]
    workers = [span for span in agents if span["name"] == "invoke_agent worker"]
    assert "parentSpanId" not in planner
    assert [span["parentSpanId"] for span in workers] == [planner["spanId"]] * 3
    assert {span["traceId"] for span in spans} == {planner["traceId"]}


def test_without_agents_there_is_no_tree(install, capsys):
    folder = install()
    with bind(step=1, request_id="a"), span("async_rollout_request_complete"):
        pass
    sglang_instrument.uninstall()
    assert main(["requests", str(folder), "--tree"]) == 0
    assert "no request is bound as one that works for another" in capsys.readouterr().out


def test_a_path_never_counts_time_twice():
    """Children that overlap, outlive their parent, and have children of their own."""
    rows = [
        {"start_us": start, "end_us": end} for start, end in [(0, 100), (10, 60), (40, 130), (20, 50), (0, 5)]
    ]
    pieces = path_of(0, rows, {0: [1, 2, 4], 1: [3]})
    assert sorted((begin, end, number) for number, begin, end in pieces) == [
        (0, 5, 4),
        (5, 10, 0),
        (10, 20, 1),
        (20, 40, 3),
        (40, 100, 2),
    ]


def test_a_circle_of_parents_is_no_tree(install):
    folder = install()
    with bind(step=1):
        for mine, parent in (("a", "b"), ("b", "a")):
            with bind(request_id=mine, parent_request=parent), span("async_rollout_request_complete"):
                pass
    sglang_instrument.uninstall()
    assert request_trees(open_run(folder, cached=False).everything).is_empty()
