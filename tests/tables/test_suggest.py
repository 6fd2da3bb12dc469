"""`patches suggest` writes a table for a class that no table knows: it is accepted, and it measures."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from logged import read_records, recorded_events
from wheels import wheel_of

import sglang_instrument
from sglang_instrument.cli.main import main
from sglang_instrument.patching.places.source_archives import open_tree
from sglang_instrument.patching.rewriting.check import check
from sglang_instrument.patching.suggest.find_class import find_class
from sglang_instrument.patching.suggest.proposal import propose
from sglang_instrument.patching.suggest.write_table import write_table
from sglang_instrument.patching.tables.reading import load_table

REQUEST = "async_rollout_request_complete"
CHECKOUT = Path(sglang_instrument.__file__).parents[1]
OWN = """
import asyncio


class Engine:
    async def async_generate(self, messages):
        await asyncio.sleep(0.001)
        text = "secret?" if len(messages) < 4 else "secret"
        meta = {"id": "x", "finish_reason": {"type": "stop"}, "prompt_tokens": 3, "completion_tokens": 7}
        return {"text": text, "meta_info": meta, "output_ids": [1] * 7}


class Search:
    async def execute(self, arguments):
        await asyncio.sleep(0)
        return arguments


class Agent:
    def __init__(self):
        self.engine, self.tools = Engine(), {"search": Search()}

    async def rollout(self, batch, step):
        return await asyncio.gather(*(self.conversation(one, f"r{n}") for n, one in enumerate(batch)))

    async def conversation(self, prompt, request_id):
        messages = [prompt]
        for turn in range(4):
            reply = await self.engine.async_generate(messages)
            messages.append(reply["text"])
            calls = self.parse_tool_calls(reply["text"])
            if not calls:
                break
            for call in calls:
                messages.append(await self.call_tool(call["name"], call["arguments"]))
        return await self.score(messages)

    def parse_tool_calls(self, text):
        return [{"name": "search", "arguments": text}] if "?" in text else []

    async def call_tool(self, name, arguments):
        return await self.tools[name].execute(arguments)

    async def score(self, messages):
        return float(len(messages))
"""
RUN = """
import asyncio, json, sys
from pathlib import Path
if sys.argv[1:] != ["never"]:
    import sglang_instrument
    sglang_instrument.install(patches=["tables"])
import my_rollout
print(json.dumps([asyncio.run(my_rollout.Agent().rollout(["a", "b"], step)) for step in (3, 4)]))
"""


def suggested(named, tree=None):
    """Return the text of the table, and its sites in the source."""
    methods, tree = find_class(named, tree)
    text = write_table(methods, propose(methods), tree, "mine")
    return text, tree


def sites(text, tree, tmp_path):
    """Return (target, event) -> lines of a table's regions; all must be found."""
    path = tmp_path / "mine.toml"
    path.write_text(text)
    [checked] = check([load_table(str(path))], tree)
    assert [site.note for site in checked.sites if site.state != "found"] == []
    return {(site.target.name, site.region.event): site.lines for site in checked.sites}


def by_hand(names, tree):
    """Return the same of tables that people wrote."""
    lines_by_region = {}
    for checked in check([load_table(name) for name in names], tree):
        for site in checked.sites or ():
            if site.state == "found":
                lines_by_region.setdefault((site.target.name, site.region.event), site.lines)
    return lines_by_region


@pytest.fixture
def rollout(tmp_path):
    (tmp_path / "my_rollout.py").write_text(OWN)
    return tmp_path / "my_rollout.py"


def test_a_rollout_of_the_users_own_gets_step_request_turn_engine_tool_and_reward(rollout, tmp_path):
    text, tree = suggested(f"{rollout}:Agent")
    assert set(sites(text, tree, tmp_path)) == {
        ("Agent.rollout", "total_step_duration"),
        ("Agent.rollout", "async_generate_duration"),
        ("Agent.conversation", REQUEST),
        ("Agent.conversation", "turn_end"),
        ("Agent.conversation", "turn_engine_call"),
        ("Agent.parse_tool_calls", "turn_tool_parsing"),
        ("Agent.call_tool", "tool_call"),
        ("Agent.call_tool", "tool_execution"),
        ("Agent.score", "reward_calculation"),
    }
    assert 'bind = { step = "step" }' in text
    assert 'bind = { request_id = "request_id" }' in text
    assert 'bind = { turn = "turn" }' in text
    assert "To do" not in text


def test_rewards_that_a_step_computes_are_proposed_and_no_field_of_a_request(tmp_path):
    path = tmp_path / "scored.py"
    path.write_text(
        OWN.replace("return await self.score(messages)", "return messages")
        .replace("return await asyncio.gather(", "replies = await asyncio.gather(")
        .replace(
            "enumerate(batch)))\n",
            "enumerate(batch)))\n        return [await self.score(one) for one in replies]\n",
        )
    )
    proposals = propose(find_class(f"{path}:Agent", None)[0])
    assert [proposal.event for proposal in proposals.of["score"]] == ["reward_calculation"]
    [request] = [proposal for proposal in proposals.of["conversation"] if proposal.event == REQUEST]
    assert "reward" not in request.exit


def test_the_table_measures_the_rollout_as_it_stands_and_changes_no_result(rollout, tmp_path):
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables/mine.toml").write_text(suggested(f"{rollout}:Agent")[0])
    (tmp_path / "run.py").write_text(RUN)
    outs = []
    for way in ("never", "measured"):
        inherited = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        ours = {"EXPERIMENT_NAME": "run", "SGLANG_INSTRUMENT_LOG_DIR": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "run.py", way],
            env={**inherited, **ours},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        )
        outs.append(json.loads(done.stdout))
    assert outs[0] == outs[1]
    logs = {path: recorded_events(records) for path, records in read_records(tmp_path / "run").items()}
    for step in (3, 4):
        records = logs[f"step_{step}/worker_0.jsonl"]
        requests = [record["extra"] for record in records if record["event"] == REQUEST]
        assert [request["request_id"] for request in requests] == ["r0", "r1"]
        assert {
            (request["turns"], request["finish_reason"], request["response_length"]) for request in requests
        } == {(3, "stop", 21)}
        assert {request["reward"] for request in requests} == {6.0}
        turns = [record["extra"]["turn"] for record in records if record["event"] == "turn_end"]
        assert sorted(turns) == [0, 0, 1, 1, 2, 2]
        tools = [record["extra"]["tool"] for record in records if record["event"] == "tool_call"]
        assert tools == ["search"] * 4
    assert "secret" not in json.dumps(logs)


def test_verls_agent_loop_gets_the_regions_that_its_table_has(tmp_path):
    tree = open_tree(wheel_of("verl", "0.9.1"))
    module = "verl.experimental.agent_loop.tool_agent_loop"
    ours = sites(suggested(f"{module}:ToolAgentLoop", tree)[0], tree, tmp_path)
    table = by_hand(["verl/agent_loop"], tree)
    same = {place for place, lines in ours.items() if table.get(place) == lines}
    assert same >= {
        ("ToolAgentLoop._handle_generating_state", "turn_end"),
        ("ToolAgentLoop._handle_generating_state", "turn_tool_parsing"),
        ("ToolAgentLoop._call_tool", "tool_call"),
    }
    name = ("ToolAgentLoop._handle_generating_state", "turn_engine_call")
    first, last = ours[name]
    assert table[name][0] <= first <= last == table[name][1]  # ours leaves the timer's `with` out, or not
    assert ("ToolAgentLoop.run", REQUEST) in ours


@pytest.mark.parametrize(
    ("named", "same"),
    [
        (
            "areal.workflow.multi_turn:MultiTurnWorkflow",
            {
                ("MultiTurnWorkflow.arun_episode", REQUEST),
                ("MultiTurnWorkflow.arun_episode", "turn_end"),
            },
        ),
        ("areal.workflow.rlvr:RLVRWorkflow", {("RLVRWorkflow.arun_episode", REQUEST)}),
    ],
)
def test_areals_workflows_get_the_regions_that_their_table_has(tmp_path, named, same):
    tree = open_tree(wheel_of("areal", "1.0.4"))
    ours = sites(suggested(named, tree)[0], tree, tmp_path)
    table = by_hand(["areal/rollout"], tree)
    assert {place for place, lines in ours.items() if table.get(place) == lines} >= same
    assert {event for _, event in ours} >= {"turn_engine_call", "reward_calculation"}


def test_the_demos_rollout_gets_the_regions_that_its_table_has(tmp_path):
    text, tree = suggested("sglang_instrument.demo.rollout:DemoRollout")
    ours, table = sites(text, tree, tmp_path), by_hand(["demo/rollout"], open_tree(CHECKOUT))
    assert {place for place, lines in ours.items() if table.get(place) == lines} >= {
        ("DemoRollout._req_level_generate_sequences", "total_step_duration"),
        ("DemoRollout._async_rollout_a_request", REQUEST),
        ("DemoRollout._async_rollout_a_request", "turn_end"),
        ("DemoRollout._async_rollout_a_request", "tool_execution"),
        ("DemoRollout._async_rollout_a_request", "interaction_response"),
    }
    assert 'request_id = "req.request_id"' in text  # `_req = deepcopy(req)`
    assert "count_steps = true" in text


def test_a_function_of_a_module_is_a_request_of_its_own(tmp_path):
    stand_in = Path(__file__).parents[1] / "trainers/miles/stand_in/miles/rollout/generate_hub/multi_turn.py"
    text, tree = suggested(f"{stand_in}:generate")
    assert {event for _, event in sites(text, tree, tmp_path)} >= {
        REQUEST,
        "turn_end",
        "turn_engine_call",
        "turn_tool_parsing",
        "tool_execution",
    }
    assert 'bind = { turn = "_turn" }' in text
    assert 'module = "miles.rollout.generate_hub.multi_turn"' in text


def test_the_command_prints_a_table_that_check_accepts(rollout, tmp_path, capsys):
    suggest = ["patches", "suggest", f"{rollout}:Agent", "--trainer", "mine"]
    assert main(suggest) == 0
    out = tmp_path / "tables/mine.toml"
    assert main([*suggest, "--out", str(out)]) == 0
    assert f"{out}: 9 regions" in capsys.readouterr().out.replace(out.read_text(), "")
    assert main([*suggest, "--out", str(out)]) == 2  # what was edited is never overwritten
    assert "File exists" in capsys.readouterr().err
    arguments = ["--patches", str(tmp_path / "tables"), "--trainer", "mine", "--source", str(tmp_path)]
    assert main(["patches", "check", *arguments]) == 0
    assert "9 of 9 found" in capsys.readouterr().out


def test_a_class_that_a_package_hands_on_is_found_where_it_is_written(rollout, tmp_path):
    package = tmp_path / "mine"
    package.mkdir()
    (package / "rollouts.py").write_text(rollout.read_text())
    (package / "agents.py").write_text("from .rollouts import Agent as BestAgent\n")
    (package / "__init__.py").write_text("from .agents import BestAgent\n")
    for named in ("mine:BestAgent", "mine.agents:BestAgent"):
        methods, _ = find_class(named, open_tree(tmp_path))
        assert (methods.module, methods.owner) == ("mine.rollouts", "Agent")
    assert "conversation" in methods.functions


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ("{}:Search", "no call of an engine"),
        ("{}:Gone", "has no class or function Gone; it has: Engine, Search, Agent"),
        ("{}", "expected MODULE:Class or FILE.py:Class"),
        ("no_such_module:Agent", "no module no_such_module"),
        ("gone.py:Agent", "no such file"),
    ],
)
def test_what_cannot_be_suggested_is_said_with_what_to_do(rollout, capsys, named, words):
    assert main(["patches", "suggest", named.format(rollout)]) == 2
    assert words in capsys.readouterr().err


def test_doctor_names_the_functions_to_bind_with_an_example(rollout, capsys):
    main(["doctor", "--rollout", f"{rollout}:Agent", "--json"])
    answers = {answer["about"]: answer["found"] for answer in json.loads(capsys.readouterr().out)}
    assert "bind it around my_rollout:Agent.rollout (line 23), which has its number: step" in answers["step"]
    assert "bind it in my_rollout:Agent.conversation (line 26)" in answers["request"]
    assert f"patches suggest {rollout}:Agent" in answers["table"]


def test_doctor_says_what_to_do_about_a_name_that_leads_nowhere(rollout, capsys):
    assert main(["doctor", "--rollout", f"{rollout}:Search"]) == 1
    assert "name the class that calls the engine" in capsys.readouterr().out


LOOP = """
from verl.experimental.agent_loop import agent_loop
from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop


class ReAct(agent_loop.AgentLoopBase):
    async def run(self, sampling_params, **kwargs):
        for turn in range(3):
            output = await self.server_manager.generate(request_id="r", prompt_ids=[], sampling_params={})
            await self.call_tool(output)

    async def call_tool(self, tool_call):
        return "5"


class Plain(ToolAgentLoop):
    async def run(self, sampling_params, **kwargs):
        return await self.server_manager.generate(request_id="r", prompt_ids=[], sampling_params={})


class Deeper(Plain):
    pass
"""


@pytest.fixture
def loop_file(tmp_path):
    path = tmp_path / "loop.py"
    path.write_text(LOOP)
    return path


def test_a_class_of_a_measured_trainer_gets_what_its_tables_lack(loop_file, capsys):
    assert main(["patches", "suggest", f"{loop_file}:ReAct"]) == 0
    table = capsys.readouterr().out
    assert "tool_" in table
    assert REQUEST not in table
    assert "turn_engine_call" not in table
    for name in ("Plain", "Deeper"):
        assert main(["patches", "suggest", f"{loop_file}:{name}"]) == 2
        assert "verl/agent_loop" in capsys.readouterr().err


def test_doctor_says_that_a_class_of_a_measured_trainer_is_measured(loop_file, capsys):
    main(["doctor", "--rollout", f"{loop_file}:Deeper"])
    printed = capsys.readouterr().out
    assert "verl/agent_loop" in printed
    assert "records its steps, requests and calls of the engine" in " ".join(printed.split())
