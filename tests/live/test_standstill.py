"""What stands still in a process that cannot speak is seen from outside: real processes, really stopped."""

import os
import signal
import time

import pytest

from sglang_instrument.cli.main import main
from sglang_instrument.live.follower import Follower
from sglang_instrument.live.outside.stacks import place_in

BUSY_SEC = 600  # only a dead machine takes longer

#: Three requests of 0.3 s; the reward of the last one runs `{code}` instead.
PROGRAM = """
import asyncio, os, re, sys, time
import sglang_instrument
from sglang_instrument import bind, instrument, span, step

sglang_instrument.install(experiment="still", log_dir={folder!r})

@instrument("score", phase="reward")
def score(number):
    if number == 2:
        sglang_instrument.flush(600)  # no thread writes what came before while the interpreter is held
        open({folder!r} + "/stands", "w").close()
        {code}
    return 1.0

with step(1):
    for number in range(3):
        with bind(request_id=f"r{{number}}"), span("request"):
            with span("generate"):
                time.sleep(0.3)
            score(number)
"""

HOLDS_THE_INTERPRETER = "re.match(r'(a+)+$', 'a' * 60 + 'b')"
SLEEPS = "time.sleep(3600)"


@pytest.fixture
def stand_still(start_script, tmp_path):
    """Start the program; return its process once the last reward has begun, and a follower of its log."""
    started = []

    def start(code):
        folder = tmp_path / "logs"
        folder.mkdir()
        process = start_script(PROGRAM.format(folder=str(folder), code=code)).process
        wait_for(lambda: (folder / "stands").exists(), "the program has not come to its last reward")
        live = Follower(folder / "still", with_done=False)
        live.start()
        started.append(live)
        return process, live

    yield start
    for live in started:
        live.stop()


def wait_for(condition, what):
    ends = time.monotonic() + BUSY_SEC
    while not condition():
        assert time.monotonic() < ends, what() if callable(what) else what
        time.sleep(0.1)


def hang_of(live):
    """Return the first problem of the follower once it names one."""
    wait_for(lambda: live.snapshot().hangs, live.snapshot)
    return live.snapshot().problems[0]


def test_a_call_that_holds_the_interpreter_is_named_and_the_last_words_with_it(stand_still):
    process, live = stand_still(HOLDS_THE_INTERPRETER)
    problem = hang_of(live)
    assert problem.kind == "hang"
    assert "holds its interpreter's lock" in problem.sentence
    assert "last it said: generate of request r2 ended" in problem.sentence
    assert f"py-spy dump --pid {process.pid}" in problem.sentence
    assert live.snapshot().workers[0].state == "hangs"


def test_a_process_that_is_stopped_is_named_and_goes_on_without_a_problem(stand_still):
    process, live = stand_still(SLEEPS)
    os.kill(process.pid, signal.SIGSTOP)
    try:
        problem = hang_of(live)
        assert "is stopped" in problem.sentence
        assert f"kill -CONT {process.pid}" in problem.sentence
    finally:
        os.kill(process.pid, signal.SIGCONT)
    wait_for(lambda: not live.snapshot().problems, live.snapshot)


def test_a_blocked_loop_is_named_while_it_is_and_no_request_that_waits_for_it(start_script, tmp_path):
    start_script(f"""
        import asyncio, time
        import sglang_instrument
        from sglang_instrument import bind, span, step

        sglang_instrument.install(experiment="still", log_dir={str(tmp_path)!r}, hang_after_sec=2)

        async def request(number):
            with bind(request_id=f"r{{number}}"), span("request"):
                with span("tool", tool="search"):
                    await asyncio.sleep(0.2 if number else 0.1)
                    if not number:
                        time.sleep(3600)

        async def rollout():
            await asyncio.gather(*map(request, range(3)))

        with step(1):
            asyncio.run(rollout())
    """)
    live = Follower(tmp_path / "still", with_done=False)
    live.start()
    try:
        problem = hang_of(live)
        assert "its event loop is blocked at" in problem.sentence
        assert "in tool search of request r0" in problem.sentence
        assert [problem.sentence for problem in live.snapshot().problems if "r1" in problem.sentence] == []
    finally:
        live.stop()


def test_a_process_that_is_killed_is_dead_within_seconds(stand_still):
    process, live = stand_still(SLEEPS)
    wait_for(lambda: live.snapshot().step is not None, live.snapshot)
    process.kill()
    problem = hang_of(live)
    assert problem.kind == "death"
    assert "the process has ended" in problem.sentence


BETWEEN_STEPS = """
import time
import sglang_instrument
from sglang_instrument import bind, span, step

sglang_instrument.install(experiment="still", log_dir={folder!r})
with step(1):
    with bind(request_id="r0"), span("request"):
        time.sleep(0.3)
{ends}
"""


@pytest.mark.parametrize(("ends", "is_killed"), [(SLEEPS, True), ("", False)])
def test_the_only_program_of_a_run_may_be_killed_between_two_steps(start_script, tmp_path, ends, is_killed):
    process = start_script(BETWEEN_STEPS.format(folder=str(tmp_path), ends=ends)).process
    live = Follower(tmp_path / "still", with_done=False)
    live.start()
    try:
        wait_for(lambda: (now := live.snapshot().step) is not None and now.is_over, live.snapshot)
        if is_killed:
            process.kill()
        wait_for(lambda: live.snapshot().ended is not None, live.snapshot)
        problems = [(problem.kind, problem.sentence) for problem in live.snapshot().problems]
        killed = [("death", "worker 0: the process has ended; last it said: request r0 ended")]
        assert problems == (killed if is_killed else [])
    finally:
        live.stop()


def test_what_was_seen_is_found_after_the_process_is_gone(stand_still, capsys):
    process, live = stand_still(HOLDS_THE_INTERPRETER)
    hang_of(live)
    logs = live.snapshot().logs
    live.stop()
    process.kill()
    process.wait()
    assert main(["check", logs]) == 1
    assert "a follower saw in step 1, silent for" in capsys.readouterr().out
    assert main(["summary", logs]) == 0
    verdict = capsys.readouterr().out
    assert "a follower saw it silent for" in verdict
    assert "holds its interpreter's lock" in verdict


def test_without_a_follower_the_last_request_is_named(stand_still, capsys):
    process, live = stand_still(HOLDS_THE_INTERPRETER)
    live.stop()
    process.kill()
    process.wait()
    assert main(["summary", live.snapshot().logs]) == 0
    assert "silent after request r1; nobody saw when it ended" in capsys.readouterr().out


def test_the_frame_is_the_programs_own():
    stack = (
        "/project/train.py:9 main",
        "/project/reward.py:4 score",
        "/usr/lib/python3.11/re/__init__.py:166 match",
    )
    assert place_in(stack) == "/project/reward.py:4 score"
    assert place_in(stack[-1:]) == stack[-1]
    assert place_in(()) is None
