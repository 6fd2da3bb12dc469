"""A stand-in for slime's sandbox, with its names and signatures, logs its set-up and its tear-down."""

import sys

from logged import read_records, recorded_events
from test_slime import run_python

ROLLOUT = """
import asyncio, sys
from types import SimpleNamespace

import sglang_instrument

sglang_instrument.install(log_dir=sys.argv[1], experiment="run")
from slime.agent.sandbox import E2BSandbox


class Box:
    sandbox_id = "box-1"

    async def run(self, cmd):
        return 0, "", ""

    async def kill(self):
        await asyncio.sleep(0.02)
        raise ConnectionError("slime swallows it")


class Service:
    async def create(self, image):
        await asyncio.sleep(0.05)
        return Box()


async def request():
    with sglang_instrument.bind(request_id="a"), sglang_instrument.span("request"):
        async with E2BSandbox("image", size="lg", service=Service()) as sandbox:
            assert await sandbox.exec("ls") == (0, "", "")


with sglang_instrument.step(2):
    asyncio.run(request())
sglang_instrument.uninstall()
"""


def test_set_up_and_tear_down_lie_in_the_request(tmp_path):
    run_python(sys.executable, ["-c", ROLLOUT, tmp_path], tmp_path)
    by_event = {
        record["event"]: record
        for record in recorded_events(read_records(tmp_path / "run")["step_2/worker_0.jsonl"])
    }
    assert by_event["environment_setup"]["extra"] == {"request_id": "a", "size": "lg"}
    assert by_event["environment_setup"]["duration_sec"] > 0.04
    assert by_event["environment_teardown"]["extra"] == {"request_id": "a"}
    assert "error" not in by_event["environment_teardown"]
