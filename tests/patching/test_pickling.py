"""A patched class that Ray pickles by value works in processes with and without this package."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

cloudpickle = pytest.importorskip("cloudpickle")

SOURCE = """
import asyncio

async def tool(n):
    await asyncio.sleep(0)
    return n + 1

class Actor:
    def work(self, n):
        kept = n * 2
        return kept

    def items(self, n):
        for item in range(n):
            yield item

    async def ask(self, n):
        lock = asyncio.Lock()
        async with lock:
            if n:
                late = await tool(n)
        return n

    async def stream(self, n):
        return [item async for item in self.each(n)]

    async def each(self, n):
        for item in range(n):
            yield item
"""

SEND = """
import sys
import cloudpickle
from sglang_instrument.patching.rewriting.patcher import Patcher
from sglang_instrument.patching.probes.probe import probes_for
from sglang_instrument.patching.tables.reading import parse_table
import travelling

PATCHES = [
    {"target": "Actor.work", "region": [{"event": "work", "enter": {"n": "n"}, "exit": {"r": "result"}}]},
    {"target": "Actor.items", "region": [{"event": "items", "exit": {"n": "n"}}]},
    {"target": "Actor.stream", "region": [{"event": "stream"}]},
    {
        "target": "Actor.ask",
        "region": [{"event": "ask", "exit": {"late": "late"}}, {"event": "asked", "call": "tool"}],
    },
]
table = parse_table("x", {"trainer": "x", "module": "travelling", "patch": PATCHES})
regions = [region for patch in table.patches for region in patch.regions]
before = travelling.Actor.ask.__code__
Patcher([table], make_probe=probes_for(regions)).install()
assert travelling.Actor.ask.__code__ is not before
cloudpickle.register_pickle_by_value(travelling)
sys.stdout.buffer.write(cloudpickle.dumps(travelling.Actor))
"""

USE = """
import asyncio, importlib.util, pickle, sys
actor = pickle.load(sys.stdin.buffer)()
print(importlib.util.find_spec("sglang_instrument") is None)
print(actor.work(4), list(actor.items(2)), asyncio.run(actor.ask(1)), asyncio.run(actor.ask(0)))
print(asyncio.run(actor.stream(3)))
"""


DECORATED = """
from sglang_instrument import instrument, span

@instrument
def score(n):
    return n + 1

@instrument
async def turn(n):
    with span("inner"):
        await asyncio.sleep(0)
    return n * 2

@instrument(phase="reward")
async def judge(n):
    return await turn(n) + 1
"""

SEND_DECORATED = """
import sys
import cloudpickle, travelling
cloudpickle.register_pickle_by_value(travelling)
sys.stdout.buffer.write(cloudpickle.dumps([travelling.score, travelling.judge, travelling.turn]))
"""

USE_DECORATED = """
import asyncio, pickle, sys
from sglang_instrument import step
from sglang_instrument.testing import records
score, judge, turn = pickle.load(sys.stdin.buffer)
with records() as seen, step(1):
    results = score(3), asyncio.run(judge(3)), asyncio.run(turn(1))
print([(record["event"], "active_sec" in record) for record in seen], *results)
"""


def run(folder: Path, *command: str, sent: bytes = b"", **environment: str) -> bytes:
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, input=sent, capture_output=True, env=environment, check=False
    )
    assert (done.returncode, done.stderr.decode()) == (0, "")
    return done.stdout


@pytest.mark.parametrize("native", [("1", "0"), ("0", "1"), ("1", "1")], ids=" to ".join)
def test_pickles_work_between_processes_with_and_without_compiled_parts(
    tmp_path: Path, native: tuple[str, str]
):
    (tmp_path / "travelling.py").write_text(textwrap.dedent(SOURCE) + DECORATED)
    sent = run(tmp_path, "-c", SEND, PYTHONPATH=str(tmp_path), SGLANG_INSTRUMENT_NATIVE=native[0])
    (tmp_path / "elsewhere").mkdir()
    printed = run(tmp_path / "elsewhere", "-c", USE, sent=sent, SGLANG_INSTRUMENT_NATIVE=native[1])
    assert printed.decode().split("\n") == ["False", "8 [0, 1] 1 0", "[0, 1, 2]", ""]
    # Decorated functions of a driver's own script are pickled by value for Ray's workers.
    sent = run(tmp_path, "-c", SEND_DECORATED, PYTHONPATH=str(tmp_path), SGLANG_INSTRUMENT_NATIVE=native[0])
    printed = run(tmp_path / "elsewhere", "-c", USE_DECORATED, sent=sent, SGLANG_INSTRUMENT_NATIVE=native[1])
    counted = [(name, True) for name in ("inner", "turn", "judge", "inner", "turn")]
    assert printed.decode() == f"{[('score', False), *counted]} 4 7 2\n"


@pytest.mark.parametrize("known", [True, False])
def test_a_patched_class_works_where_this_package_is_and_where_it_is_not(tmp_path: Path, known: bool) -> None:
    (tmp_path / "travelling.py").write_text(textwrap.dedent(SOURCE))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "cloudpickle").symlink_to(Path(cloudpickle.__file__).parent)
    sent = run(tmp_path, "-c", SEND, PYTHONPATH=str(tmp_path))
    if known:
        printed = run(tmp_path / "elsewhere", "-c", USE, sent=sent)
    else:  # -S: no site-packages, only Python and cloudpickle
        printed = run(tmp_path / "elsewhere", "-S", "-c", USE, sent=sent)
    assert printed.decode().split("\n") == [str(not known), "8 [0, 1] 1 0", "[0, 1, 2]", ""]
