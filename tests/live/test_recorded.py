"""What the recorder writes while requests are open is what the follower tells."""

import asyncio
import time

import sglang_instrument
from sglang_instrument import bind, span
from sglang_instrument.live.follower import Follower

ENDS_SEC = 600  # only a dead machine takes longer
AT_END = 4  # requests
WAITING = {"engine": 4, "tool": 4, "reward": 4}


async def request(number, over):
    """A request in the engine, in a tool, in a reward, or at its end, by its number."""
    with bind(request_id=f"r{number}"), span("async_rollout_request_complete"):
        with bind(turn=0), span("turn_end"):
            with span("turn_engine_call", generated_tokens=7):
                pass
            if number % 4 == 1:
                with span("tool_execution"):
                    await over.wait()
            elif number % 4 == 2:
                with span("my_judge", phase="reward"):
                    await over.wait()
            elif number % 4 == 3:
                await over.wait()
        await asyncio.sleep(0 if number < AT_END * 4 else 0.01)


async def step(folder, look):
    """Run a step; return what `look` tells while 12 requests of 16 wait, and when all are over."""
    over = asyncio.Event()
    with bind(step=1, worker=0), span("total_step_duration"):
        requests = [asyncio.create_task(request(number, over)) for number in range(AT_END * 4)]
        # The recorder may first say what is open while some of them have not begun yet.
        waiting = await asyncio.to_thread(
            look, lambda step: (step.open, step.requests_done) == (WAITING, AT_END)
        )
        over.set()
        await asyncio.gather(*requests)
    return waiting, await asyncio.to_thread(look, lambda step: step.is_over)


def test_the_follower_tells_what_the_recorder_knows_to_be_open(install):
    folder = install(open_now_sec=0.1)
    follower = Follower(folder, with_done=False)

    def look(condition):
        ends = time.monotonic() + ENDS_SEC
        while time.monotonic() < ends:
            follower.round()
            snapshot = follower.snapshot()
            if snapshot.step is not None and condition(snapshot.step):
                return snapshot
            time.sleep(0.1)
        raise AssertionError(f"it did not happen: {follower.snapshot()}")

    waiting, ended = asyncio.run(step(folder, look))
    follower.stop()
    sglang_instrument.uninstall()
    now = waiting.step
    assert now.open == WAITING
    assert (now.requests_open, now.requests_done) == (12, 4)
    assert waiting.workers[0].open == now.open
    assert {request.event for request in now.oldest} == {
        "turn_end",
        "tool_execution",
        "my_judge",
        None,
    }  # five are named
    assert len(now.oldest) == 12
    assert all((request.tokens, request.turn) == (7, 0) for request in now.oldest)
    assert 0 < max(request.age_sec for request in now.oldest) < ENDS_SEC
    assert (ended.step.requests_open, ended.step.requests_done, ended.step.open) == (0, 16, {})
    assert not ended.problems


def test_spans_that_the_recorder_did_not_count_are_open_all_the_same(install, monkeypatch):
    from sglang_instrument.recording.watch import open_now

    monkeypatch.setattr(open_now, "_MOST_COUNTED", 5)
    folder = install(open_now_sec=0.1)
    follower = Follower(folder, with_done=False)

    async def one_request(number, over):
        with bind(request_id=f"r{number}"), span("async_rollout_request_complete"):
            with bind(turn=0), span("preprocessing_duration"):
                pass
            await over.wait()

    async def many():
        over = asyncio.Event()
        with bind(step=1, worker=0), span("total_step_duration"):
            requests = [asyncio.create_task(one_request(number, over)) for number in range(300)]
            ends = time.monotonic() + ENDS_SEC
            while time.monotonic() < ends:
                await asyncio.sleep(0.1)
                follower.round()
                step = follower.snapshot().step
                if step is not None and sum(step.open.values()) == 300:  # the first record may name fewer
                    break
            over.set()
            await asyncio.gather(*requests)
        return step

    seen_step = asyncio.run(many())
    follower.stop()
    sglang_instrument.uninstall()
    assert seen_step.requests_open == 300
    assert sum(seen_step.open.values()) == 300
