"""The terminal shows the running step, what hangs, and opens workers, requests and the verdict."""

import asyncio
import os
import re

import pytest
from live_writer import LiveRun
from screen import until, until_shown

from sglang_instrument.live import state, words
from sglang_instrument.live.follower import Follower
from sglang_instrument.live.terminal.app import Terminal
from sglang_instrument.live.terminal.rows import LiveTable
from sglang_instrument.testing import synthetic_run


@pytest.fixture
def run(tmp_path):
    """Return a run with a worker that waits and one that hangs."""
    run = LiveRun(tmp_path / "exp")
    for worker in range(2):
        run.process(f"worker_{worker}", os.getpid())
    first, second = run.open(7, 0), run.open(7, 1)
    first.request("a", time_sec=50, duration_sec=40, tokens=500)
    first.open_now(50, {}, [], barrier_wait_duration=1)
    second.span("turn_engine_call", 10, 9, request_id="r17", turn=0, generated_tokens=99)
    second.span("tool_execution", 14, 4, request_id="r17", turn=0)
    stuck = {
        "event": "tool_execution",
        "request_id": "r17",
        "turn": 1,
        "age_sec": 35,
        "stack": ["tool.py:3 run"],
    }
    second.control("open_spans", 50, open=1, spans=[stuck])
    oldest = [{"event": "tool_execution", "request_id": "r17", "turn": 1, "age_sec": 49}]
    second.open_now(50, {"tool_execution": 1, "turn_end": 2}, oldest)
    return run


def drive(logs, act, size=(120, 40)):
    """Run the application on some logs, and `act` on its pilot."""

    async def session():
        follower = Follower(logs, with_done=False)
        follower.catch_up()
        app = Terminal(follower)
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await act(app, pilot)
        follower.stop()

    asyncio.run(session())


def test_the_main_screen_shows_step_workers_requests_and_problems(run):
    async def look(app, pilot):
        keys = ("open the worker or request", "verdict so far", "help", "quit")
        text = await until_shown(app, pilot, "waits for 1", "hangs", *keys)
        assert re.search(r"step 7, (5\d s|\d+ min \d+ s) old: 1 requests done, 3 open", text)
        assert "engine 2, tool 1, barrier 1" in text
        assert "hang: worker 1: tool_execution of request r17, turn 2 does not end, at tool.py:3 run" in text

    drive(run.folder, look)


@pytest.mark.parametrize("size", [(80, 24), (60, 12), (200, 60)])
def test_it_draws_on_terminals_of_all_sizes(run, size):
    async def look(app, pilot):
        await until_shown(app, pilot, "step 7")

    drive(run.folder, look, size)


def test_a_small_terminal_shows_workers_and_requests_whatever_goes_wrong(run):
    """The ledger of past steps gives way, and long problems are cut."""
    for worker in range(2, 5):
        run.process(f"worker_{worker}", os.getpid())
        file = run.open(7, worker)
        file.span("tool_execution", 14, 4, request_id=f"q{worker}", turn=0)
        place = f"/a/long/way/to/the/code/of/a/tool/which/is/far/away/from/here/of_{worker}.py:3 run_the_tool"
        stuck = {
            "event": "tool_execution",
            "request_id": f"q{worker}",
            "turn": 1,
            "age_sec": 35,
            "place": place,
        }
        file.control("open_spans", 50, open=1, spans=[stuck])

    async def look(app, pilot):
        def rows(text):
            return [line for line in text.splitlines() if "hang:" not in line]

        await until(app, pilot, lambda text: any(line.startswith("worker  state") for line in rows(text)))
        await until(app, pilot, lambda text: any("hangs" in line for line in rows(text)))
        old = re.compile(r"r17.* (49 s|5\d s|\d+ min)")  # the screen goes on counting
        await until(app, pilot, lambda text: any(map(old.search, rows(text))))

    drive(run.folder, look, size=(80, 24))


def test_a_worker_opens_and_closes(run):
    async def look(app, pilot):
        await pilot.press("enter")
        text = await until(app, pilot, lambda text: "its oldest requests" in text)
        assert "worker 1" in text  # the one that hangs comes first
        assert "tool_execution" in text
        await pilot.press("escape")
        assert len(app.screen_stack) == 1

    drive(run.folder, look)


def test_a_request_opens_with_its_records_so_far(run):
    async def look(app, pilot):
        await pilot.press("tab", "enter")
        text = await until(app, pilot, lambda text: "now:" in text)
        assert "request r17 of worker 1" in text
        assert "turn_engine_call" in text
        assert "now: tool_execution is open" in text

    drive(run.folder, look)


def test_the_verdict_so_far_is_that_of_summary(tmp_path):
    logs = synthetic_run(tmp_path / "exp", steps=2, workers=2, requests=4)

    async def look(app, pilot):
        await pilot.press("v")
        await until(app, pilot, lambda text: "nothing out of the ordinary" in text)

    drive(logs, look)


def test_help_is_one_key_away(run):
    async def look(app, pilot):
        await pilot.press("question_mark")
        await until(app, pilot, lambda text: "writes no more with requests open" in text)
        await pilot.press("q")
        assert len(app.screen_stack) == 1

    drive(run.folder, look)


def test_the_cursor_stays_with_its_row_while_rows_come_and_go(run):
    async def look(app, pilot):
        await pilot.press("down")
        table = app.query_one("#workers", LiveTable)
        assert table.chosen() == "worker_0"
        run.open(7, 2).request("c", time_sec=51, duration_sec=1)
        app._follower._run.tail.hurry()
        app._follower.round()
        app.draw()
        await pilot.pause()
        assert len(table._keys) == 3
        assert table.chosen() == "worker_0"

    drive(run.folder, look)


def test_it_waits_for_a_run_that_is_not_there(tmp_path):
    async def look(app, pilot):
        await until_shown(app, pilot, "no such folder yet")

    drive(tmp_path / "logs", look)


def test_hostile_names_are_shown_as_text(tmp_path):
    run = LiveRun(tmp_path / "exp")
    file = run.open(1, 0)
    file.open_now(3.0, {"[red]x[/red]": 1}, [{"event": "[bold]e", "request_id": "[/r\x1b[2J]", "age_sec": 3}])

    async def look(app, pilot):
        text = await until_shown(app, pilot, "[bold]e", "[/r\\x1b[2J]")
        assert "\x1b" not in text

    drive(run.folder, look)


def test_rows_of_the_ledger_have_one_scale():
    steps = [
        state.StepDone(number, False, 1.0, 1, 1, 1.0, 1.0, None, 0.0, {"engine": float(number), "tool": 1.0})
        for number in range(1, 9)
    ]
    assert words.ledger_rows(steps, 4) == [("engine", "▆▇██", 8.0), ("tool", "▂▂▂▂", 1.0)]


def test_durations_are_rounded_for_people():
    texts = [words.duration(sec) for sec in (0, 9.94, 9.96, 59.4, 59.6, 3599, 3600, 7500)]
    assert texts == ["0.0 s", "9.9 s", "10 s", "59 s", "1 min 0 s", "59 min 59 s", "1 h 0 min", "2 h 5 min"]
