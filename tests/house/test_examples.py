"""Run each example of the pages: tables, Python, commands; examples that cannot run here are skipped."""

import json
import re
import shlex
import shutil
import subprocess
import sys
import textwrap

import pytest
from documented import PAGES, ROOT, blocks, inline, own_commands, programs, shell_blocks
from made_traces import engine_trace
from profile_stand_ins import StandIn, served

from sglang_instrument import schema
from sglang_instrument.analysis import open_run
from sglang_instrument.analysis.dataset.export import export_dataset
from sglang_instrument.cli.main import COMMANDS, parser_of
from sglang_instrument.config import PREFIX
from sglang_instrument.errors import TableError
from sglang_instrument.patching.probes.plan import make_plan
from sglang_instrument.patching.tables import reading
from sglang_instrument.patching.tables.field_functions import NAMES
from sglang_instrument.patching.tables.reading import parse_table
from sglang_instrument.testing import synthetic_run

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LANGUAGE = ROOT / "patches/README.md"
#: test_prometheus.py checks yaml, test_sql.py checks sql; nothing builds the dockerfile.
LANGUAGES = {"", "text", "toml", "python", "bash", "json", "yaml", "dockerfile", "sql"}
#: The module that the example table of the field language patches.
TRAINER = '''
import time
from types import SimpleNamespace


class Rollout:
    step = 7

    def run(self, request):
        """Answer a request."""
        waited = 0.05
        reply = self.generate(waited)
        return reply

    def generate(self, waited):
        time.sleep(waited)
        return SimpleNamespace(token_ids=[1, 2, 3], finish_reason="stop")
'''
TRAIN = """
import sglang_instrument
sglang_instrument.install()
from types import SimpleNamespace
from mytrainer.rollout import Rollout
Rollout().run(SimpleNamespace(id="r7"))
"""


def ids(block):
    return str(block)


def test_the_examples_are_found():
    assert {block.language for block in blocks()} == LANGUAGES
    assert len(blocks("python")) >= 7
    assert len(own_commands()) >= 40
    assert {str(block).partition(":")[0] for block in blocks()} <= {
        str(page.relative_to(ROOT)) for page in PAGES
    }


def test_each_table_is_in_the_language():
    for block in blocks("toml"):
        table = parse_table(str(block), tomllib.loads(block.text))  # an error names the block
        for region in (region for patch in table.patches for region in patch.regions):
            make_plan(region)


def test_the_table_of_the_languages_page_measures_what_it_says(run_script, tmp_path):
    [block] = [block for block in blocks("toml") if block.page == "patches/README.md"]
    (tmp_path / "mytrainer").mkdir()
    (tmp_path / "mytrainer/rollout.py").write_text(TRAINER)
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables/rollout.toml").write_text(block.text)
    script = run_script(TRAIN, **{f"{PREFIX}PATCHES": str(tmp_path / "tables")})
    records = {record["event"]: record for record in script.records["step_7/worker_0.jsonl"]}
    request, turn = records["async_rollout_request_complete"], records["turn_engine_call"]
    assert turn["extra"] == {"request_id": "r7", "finish_reason": "stop"}
    assert request["extra"] == {"request_id": "r7", "response_length": 3, "engine_time": turn["duration_sec"]}
    assert turn["duration_sec"] >= 0.05


def test_a_field_that_no_region_inside_has_is_an_error_that_says_what_is_right(tmp_path):
    [block] = [block for block in blocks("toml") if block.page == "patches/README.md"]
    wrong = tmp_path / "wrong.toml"
    wrong.write_text(block.text.replace("[*].duration_sec", "[*].duration"))
    with pytest.raises(TableError) as refused:
        reading.load_table(str(wrong))
    assert str(refused.value) == (
        f"{wrong}: patch 1: region 1: exit.engine_time: no region turn_engine_call of this table has a field "
        "'duration'; did you mean 'duration_sec'? the fields are duration_sec, finish_reason, turn"
    )


@pytest.mark.parametrize("code", inline(LANGUAGE, tuple(f"{key} = " for key in sorted(reading._REGION_KEYS))))
def test_a_key_that_is_shown_in_a_line_is_in_the_language(code):
    keys = tomllib.loads("\n".join(re.split(r", (?=\w+ = )", code)))
    region = {"event": "tool_execution", **keys}
    table = {"trainer": "t", "patch": [{"target": "m:f", "region": [region]}]}
    make_plan(parse_table("t", table).patches[0].regions[0])


def test_the_page_of_the_language_names_every_key_and_function():
    text = LANGUAGE.read_text()
    keys = reading._REGION_KEYS | reading._PATCH_KEYS | reading._TABLE_KEYS
    assert {key for key in keys if not re.search(rf"`{key}[` ]|\[{key}\.", text)} == set()
    functions = text.partition("FUNCTION = ")[2].partition("\n\n")[0]
    assert {name for name in NAMES if not re.search(rf"\b{name}\b", functions)} == set()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Make what the examples read: a run, its dataset, traces of an engine."""
    folder = tmp_path_factory.mktemp("made")
    logs = synthetic_run(folder / "logs/gsm8k_600", steps=3, first_step=66, workers=2, requests=4)
    export_dataset(open_run(logs), folder / "gsm8k_600_parquet")
    (folder / "sglang_profile").mkdir()
    engine_trace().write(folder / "sglang_profile/made-TP-0.trace.json.gz")
    return folder


@pytest.fixture
def folder(made, tmp_path, monkeypatch):
    """The folder that the examples run in, with what they read, and without settings in the environment."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


NOTEBOOK = "docs/how-to/notebook.md"
#: Runs cells as a notebook does: in one module, in a running event loop, with top-level `await`.
KERNEL = """
import ast, asyncio, inspect, sys
async def run(cells):
    names = {"__name__": "__main__"}
    for cell in cells:
        code = compile(cell, "cell", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        done = eval(code, names)
        if inspect.isawaitable(done):
            await done
    assert names["steps"]["requests"].to_list() == [4]
asyncio.run(run(sys.argv[1:]))
"""


def test_the_cells_of_the_notebook_run_one_after_the_other(folder):
    cells = [block.text for block in blocks("python") if block.page == NOTEBOOK]
    assert len(cells) >= 4
    command = [sys.executable, "-W", "ignore", "-c", KERNEL, *cells]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("block", [block for block in blocks("python") if block.page != NOTEBOOK], ids=ids)
def test_python_runs(block, folder):
    source = block.text.replace("/tmp/sglang_profile", str(folder / "sglang_profile"))
    code = compile(source, str(block), "exec", dont_inherit=True)
    if 'on="ray"' in source:
        pytest.skip("checked only: needs a Ray cluster")
    with served(StandIn()) as [server]:
        exec(code, {"__name__": "__main__", "engine_or_url_or_list": server.url})


def test_each_command_is_one_of_ours_and_takes_its_arguments(capsys):
    wrong = []
    for page, (command, *arguments) in own_commands():
        if command not in COMMANDS:
            wrong.append(f"{page}: there is no command {command!r}")
        elif arguments not in ([], ["--help"]):  # otherwise the text only names it or uses --help
            try:
                parser_of(command).parse_args(arguments)
            except SystemExit:
                said = capsys.readouterr().err.strip().splitlines()[-1]
                wrong.append(f"{page}: {shlex.join([command, *arguments])}: {said}")
    assert not wrong, "\n".join(wrong)


def test_a_shell_can_read_each_block_and_each_goal_of_make_is_in_the_makefile():
    goals = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    wrong = []
    for block in shell_blocks():
        text = textwrap.dedent(re.sub(r"^\$ ", "", block.text, flags=re.MULTILINE))
        done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True)
        wrong += [f"{block}: {done.stderr}"] if done.returncode else []
        wrong += [
            f"{block}: no goal {goal}"
            for goal in re.findall(r"^make ([a-z-]+)", text, re.MULTILINE)
            if goal not in goals
        ]
        wrong += [] if programs(block) else [f"{block}: calls no program of ours and none of PROGRAMS"]
    assert not wrong, "\n".join(wrong)


def test_each_record_that_is_shown_is_one():
    for block in blocks("json"):
        for line in block.text.splitlines():
            record = json.loads(line)
            assert record["event"] in schema.EVENTS.keys() | schema.CONTROL_EVENTS, f"{block}: {line}"
            assert [key for key in schema.KEYS if key in record] == list(record), f"{block}: {line}"
