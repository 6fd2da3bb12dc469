"""What a rollout forgot to bind is said below each table, and `check` fails; nothing else is accused."""

import asyncio
import concurrent.futures
import json
import threading

import pytest

import sglang_instrument
from sglang_instrument import bind, instrument, span, step
from sglang_instrument.cli.main import main

REQUESTS, STEPS = 6, 2
NO_REQUEST = "24 of 24 engine calls belong to no request"


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "240")


@instrument(phase="generate")
async def generate():
    await asyncio.sleep(0.002)


@instrument(phase="generate")
def generate_in_a_thread():
    threading.Event().wait(0.002)


async def two_turns():
    await generate()
    await generate()


async def nothing_bound(step_number, number):
    await two_turns()


async def spans_without_ids(step_number, number):
    with span("request", phase="request"):
        await two_turns()


async def one_id_for_all(step_number, number):
    with bind(request_id="same"):
        await two_turns()


async def one_id_for_all_spans(step_number, number):
    with bind(request_id="same"), span("request"):
        await two_turns()


async def ids_without_spans(step_number, number):
    with bind(request_id=f"r{step_number}.{number}"):
        await two_turns()


async def the_same_ids_in_each_step(step_number, number):
    with bind(request_id=f"r{number}"):
        await two_turns()


async def samples_of_one_request(step_number, number):
    with bind(request_id=f"r{step_number}.{number % 2}"):
        await two_turns()


async def run_in_an_executor(step_number, number):
    with bind(request_id=f"r{step_number}.{number}"):
        await asyncio.get_running_loop().run_in_executor(None, generate_in_a_thread)


async def a_pool_of_threads(step_number, number):
    with concurrent.futures.ThreadPoolExecutor(2) as pool, bind(request_id=f"r{step_number}.{number}"):
        for call in [pool.submit(generate_in_a_thread), pool.submit(generate_in_a_thread)]:
            call.result()


async def batch_of_all(step_number, number):
    if number == 0:  # one call for all requests of the step
        await generate()


def roll_out(request):
    async def requests(step_number):
        await asyncio.gather(*(request(step_number, number) for number in range(REQUESTS)))

    for step_number in range(1, STEPS + 1):
        with step(step_number), span("total_step_duration"):
            asyncio.run(requests(step_number))


@pytest.fixture
def commands_say(install, capsys):
    """Return what the commands say of a rollout that is not bound, and how `check` exits."""

    def tell(run):
        folder = install()
        run()
        sglang_instrument.uninstall()
        lines = {}
        for command in ("summary", "requests", "turns"):
            assert main([command, str(folder)]) == 0
            shown = capsys.readouterr().out.splitlines()
            lines[command] = [line.split(": ", 1)[1] for line in shown if line.startswith("not bound: ")]
            assert not lines[command] or "nothing was recorded" not in "".join(shown)
        code = main(["check", str(folder), "--json"])
        lines["check"] = json.loads(capsys.readouterr().out)["unbound"]
        assert lines["summary"] == lines["requests"] == lines["turns"] == lines["check"]
        return lines["check"], code

    return tell


@pytest.mark.parametrize(
    ("request_of", "words", "todo"),
    [
        (nothing_bound, NO_REQUEST, "`with bind(request_id=...)`"),
        (
            spans_without_ids,
            f"{NO_REQUEST}, for 12 spans of requests have no id",
            '`with bind(request_id=...), span("request")`',
        ),
        (
            one_id_for_all_spans,
            "all 24 engine calls of all steps belong to one request, 'same'",
            "an id of its own",
        ),
        (
            one_id_for_all,
            "all 24 engine calls of all steps belong to one request, 'same'",
            "an id of its own",
        ),
    ],
)
def test_what_is_not_bound_is_said_with_what_to_write(commands_say, request_of, words, todo):
    [sentence], code = commands_say(lambda: roll_out(request_of))
    assert sentence.startswith(words)
    assert todo in sentence
    assert sentence.endswith("(docs/how-to/own-rollout.md)")
    assert code == 1


def test_a_rollout_without_steps_is_told_so(commands_say):
    def run():
        asyncio.run(ids_without_spans(0, 0))

    [sentence], code = commands_say(run)
    assert sentence.startswith("no step was bound: write `with step(n)`")
    assert code == 0


@pytest.mark.parametrize(
    "request_of",
    [
        ids_without_spans,
        the_same_ids_in_each_step,
        samples_of_one_request,
        run_in_an_executor,
        a_pool_of_threads,
        batch_of_all,
    ],
)
def test_what_is_bound_is_not_accused(commands_say, request_of):
    assert commands_say(lambda: roll_out(request_of)) == ([], 0)
