"""Run each example of the pages: tables, Python, commands; examples that cannot run here are skipped."""

import json
import os
import re
import subprocess
import sys
import textwrap

import pytest
from documented import PAGES, PROGRAMS, ROOT, blocks, inline, own_commands, programs, shell_blocks
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
#: tests/live/test_prometheus.py checks those in yaml.
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


@pytest.mark.parametrize("block", blocks("toml"), ids=ids)
def test_a_table_is_in_the_language(block):
    table = parse_table(str(block), tomllib.loads(block.text))
    for region in (region for patch in table.patches for region in patch.regions):
        make_plan(region)


def test_the_table_of_the_languages_page_measures_what_it_says(run_script, tmp_path):
    [block] = [block for block in blocks("toml") if block.page == "patches/README.md"]
    (tmp_path / "mytrainer").mkdir()
    (tmp_path / "mytrainer/rollout.py").write_text(TRAINER)
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables/rollout.toml").write_text(block.text)
    script = run_script(TRAIN, **{f"{PREFIX}PATCHES": str(tmp_path / "tables")})
    records = {one["event"]: one for one in script.records["step_7/worker_0.jsonl"]}
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


@pytest.fixture
def at_hand(tmp_path):
    """Make what the examples use: a run, traces of an engine, a server that can be profiled."""
    logs = synthetic_run(tmp_path / "logs/gsm8k_600", steps=3, first_step=66, workers=2, requests=4)
    export_dataset(open_run(logs), tmp_path / "gsm8k_600_parquet")
    (tmp_path / "sglang_profile").mkdir()
    engine_trace().write(tmp_path / "sglang_profile/made-TP-0.trace.json.gz")
    with served(StandIn()) as [server]:
        yield server.url


@pytest.fixture
def run_python(tmp_path):
    """Run a program in the folder of the test, without settings; it must succeed without a warning."""

    def run(source, *arguments):
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", source, *arguments],
            cwd=tmp_path,
            env={name: value for name, value in os.environ.items() if not name.startswith(PREFIX)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr

    return run


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


def test_the_cells_of_the_notebook_run_one_after_the_other(run_python):
    cells = [block.text for block in blocks("python") if block.page == NOTEBOOK]
    assert len(cells) >= 4
    run_python(KERNEL, *cells)


@pytest.mark.parametrize("block", [block for block in blocks("python") if block.page != NOTEBOOK], ids=ids)
def test_python_runs(block, at_hand, run_python, tmp_path):
    source = block.text.replace("/tmp/sglang_profile", str(tmp_path / "sglang_profile"))
    if 'on="ray"' in source:
        compile(source, block.page, "exec")
        pytest.skip("read, not run: needs a Ray cluster")
    if "engine_or_url_or_list" in source:
        source = f"engine_or_url_or_list = {at_hand!r}\n{source}"
    run_python(source)


@pytest.mark.parametrize(
    "words", [pytest.param(words, id=f"{at} {' '.join(words)}") for at, words in own_commands()]
)
def test_a_command_is_one_that_there_is(words):
    assert words[0] in COMMANDS
    if words[1:] not in ([], ["--help"]):  # otherwise the text only names it or uses --help
        parser_of(words[0]).parse_args(words[1:])


@pytest.mark.parametrize("block", shell_blocks(), ids=ids)
def test_a_shell_can_read_it_and_what_it_calls_is_ours_or_told(block):
    text = textwrap.dedent(re.sub(r"^\$ ", "", block.text, flags=re.MULTILINE))
    done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    called = programs(block)
    assert called
    goals = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"^make ([a-z-]+)", text, re.MULTILINE)) <= goals
    reasons = [f"{name}: {PROGRAMS[name]}" for name in sorted(called & PROGRAMS.keys())]
    if reasons:
        pytest.skip(f"read, not run: {'; '.join(reasons)}")


@pytest.mark.parametrize("block", blocks("json"), ids=ids)
def test_a_record_that_is_shown_is_one(block):
    for line in block.text.splitlines():
        record = json.loads(line)
        assert record["event"] in schema.EVENTS.keys() | schema.CONTROL_EVENTS
        assert [key for key in schema.KEYS if key in record] == list(record)


@pytest.mark.parametrize("block", blocks("dockerfile"), ids=ids)
def test_a_dockerfile_is_not_built(block):
    pytest.skip(f"not run: {PROGRAMS['docker']}")
