"""A failed or cancelled request of the real engine is joined with its scheduler's records by its `rid`."""

import os
import sys
import textwrap
from subprocess import PIPE

import pytest
from logged import own, read_records
from own_group import run_in_group

pytestmark = pytest.mark.engine

#: One request of each kind, without a `rid`: the engine makes it.
REQUESTS = """
    import asyncio, pathlib, sys, warnings

    async def cancelled(engine, log, number, **how):
        async def consume():
            reply = await engine.async_generate(input_ids=[300, 301], sampling_params=LONG, **how)
            if how:
                async for part in reply:
                    pass
        task = asyncio.create_task(consume())
        while received(log) < number:  # until the scheduler has logged this request, too
            await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    def received(log):
        path = log / "engine/scheduler_0_tp0.jsonl"
        return path.read_text().count('"scheduler_first_tokens"') if path.exists() else 0

    async def main(engine, log):
        await engine.async_generate(input_ids=[300, 301], sampling_params={**LONG, "max_new_tokens": 2})
        await cancelled(engine, log, 2)
        await cancelled(engine, log, 3, stream=True)
        try:
            await engine.async_generate(input_ids=[300] * 600, sampling_params=LONG)
            raise SystemExit("600 tokens fit into a context of 512")
        except ValueError:
            pass

    LONG = {"max_new_tokens": 480, "temperature": 0, "ignore_eos": True}
    if __name__ == "__main__":
        warnings.simplefilter("ignore")
        import sglang_instrument
        sglang_instrument.install()
        log = pathlib.Path(sglang_instrument.status()["folder"])
        from sglang_instrument.demo.engine import start_engine
        from sglang_instrument.demo.model import ensure_model
        model = ensure_model(pathlib.Path.home() / ".cache/sglang-instrument")
        engine = start_engine(model, rank=0, context_length=512, scratch=pathlib.Path.cwd())
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        loop.run_until_complete(main(engine, log))
        sglang_instrument.uninstall()
        engine.shutdown()
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The records of a run of `REQUESTS` by event, without control records."""
    folder = tmp_path_factory.mktemp("failing")
    (folder / "requests_that_end_early.py").write_text(textwrap.dedent(REQUESTS))
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SGLANG_INSTRUMENT")}
    ours = {
        "SGLANG_INSTRUMENT_LOG_DIR": str(folder / "logs"),
        "EXPERIMENT_NAME": "run",
        "OMP_NUM_THREADS": "1",
    }
    done = run_in_group(
        [sys.executable, "requests_that_end_early.py"],
        env=clean | ours,
        cwd=folder,
        stderr=PIPE,
        text=True,
        timeout=1800,  # on a busy machine
    )
    assert done.returncode == 0, done.stderr[-4000:]
    by_event = {}
    for records in read_records(folder / "logs/run").values():
        for record in own(records):
            by_event.setdefault(record["event"], []).append(record)
    return by_event


def names(run, event, error):
    """Return the `rid` of each record of an event that ended with this error."""
    return [one["extra"].get("rid") for one in run[event] if one.get("error") == error]


@pytest.mark.parametrize("event", ["engine_request", "engine_wait", "engine_stream"])
def test_a_cancelled_request_has_the_name_by_which_its_scheduler_knows_it(run, event):
    [rid] = names(run, event, "CancelledError")
    assert rid in names(run, "scheduler_receive", None)


def test_a_failed_request_has_a_name_that_no_scheduler_heard_of(run):
    [rid] = names(run, "engine_request", "ValueError")
    assert isinstance(rid, str)
    assert rid not in names(run, "scheduler_receive", None)


def test_a_request_that_is_answered_keeps_its_name(run):
    [rid] = names(run, "engine_request", None)
    assert names(run, "engine_wait", None) == [rid]
    assert rid in names(run, "scheduler_receive", None)


def test_a_cancelled_request_has_no_fields_of_an_answer(run):
    assert all(set(one["extra"]) == {"items", "rid"} for one in run["engine_request"] if "error" in one)
