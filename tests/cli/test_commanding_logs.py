"""No log commands a terminal, a spreadsheet, a monitor or who holds an admin key."""

from __future__ import annotations

import asyncio
import json
import os
import re

import pytest
from live_served import OPENMETRICS, get, samples, served
from live_writer import LiveRun
from profile_stand_ins import StandIn
from profile_stand_ins import served as served_engines

from sglang_instrument.analysis import open_run
from sglang_instrument.cli.main import main
from sglang_instrument.errors import LogError
from sglang_instrument.live.follower import Follower
from sglang_instrument.live.terminal.app import Terminal
from sglang_instrument.startup.scalars import Scalars
from sglang_instrument.testing import synthetic_run

CONTROLS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
#: Fills the clipboard, sets the title, moves the cursor, turns the direction of writing.
COMMANDS = "\x1b]52;c;ZXZpbA==\x07\x1b]0;owned\x07\x9b2J\r\x08\x7f\u202e"


@pytest.fixture
def run(tmp_path):
    """A run whose folder, id, events, requests and tools all hold escape sequences."""
    run = LiveRun(tmp_path / f"exp{COMMANDS}", run_id=f"run{COMMANDS}")
    run.process("worker_0", os.getpid())
    file = run.open(7, 0)
    file.span(f"mine{COMMANDS}", 10, 9, request_id=f"r{COMMANDS}", turn=0)
    file.span("mine\\x1b]52;c;ZXZpbA==\\x07", 10, 9)
    oldest = {"event": "tool_execution", "request_id": f"r{COMMANDS}", "turn": 1, "age_sec": 49}
    stuck = {**oldest, "age_sec": 35, "stack": [f"tool.py:3 run{COMMANDS}"], "tool": COMMANDS}
    file.control("open_spans", 50, open=1, spans=[stuck])
    file.open_now(50, {"tool_execution": 1}, [{**oldest, "tool": COMMANDS}])
    return run


def test_what_is_served_of_a_run_holds_no_control_characters(run):
    with served(run.folder) as (server, _):
        for path in ("/metrics", "/api/now", "/"):
            for headers in (OPENMETRICS, {}):
                status, _, body = get(server, path, headers)
                assert status == 200
                assert CONTROLS.findall(body) == [], path
        answer = json.loads(get(server, "/api/now")[2])
        assert answer["run_id"] == f"run{COMMANDS}", "JSON escapes the value but does not change it"
        known = samples(server)["sglang_instrument_events_total"]
    labels = [dict(series)["event"] for series in known]
    assert len(labels) == len(set(labels)), "Prometheus refuses all metrics if two have the same labels"


def test_a_terminal_is_drawn_without_control_characters(run):
    async def drawn():
        follower = Follower(run.folder, with_done=False)
        follower.catch_up()
        app = Terminal(follower)
        lines = []
        async with app.run_test(size=(200, 40)) as pilot:
            for keys in ([], ["enter"], ["escape", "tab", "enter"]):
                await pilot.press(*keys)
                await pilot.pause()
                lines += [
                    "".join(part.text for part in strip) for strip in app.screen._compositor.render_strips()
                ]
        follower.stop()
        return "\n".join(lines)

    text = asyncio.run(drawn())
    assert "run\\x1b]52;c;ZXZpbA==" in text
    assert "exp\\x1b]52" in text
    assert CONTROLS.findall(text) == []


def test_the_errors_and_cards_that_python_prints_hold_no_control_characters(tmp_path):
    with pytest.raises(LogError) as raised:
        open_run(tmp_path / f"none{COMMANDS}")
    assert CONTROLS.findall(str(raised.value)) == []
    folder = synthetic_run(tmp_path / f"run{COMMANDS}", steps=1, workers=1, requests=2)
    opened = open_run(folder, cached=False)
    assert CONTROLS.findall(repr(opened)) == []
    assert CONTROLS.findall(opened._repr_html_()) == []


def test_a_reports_texts_hold_no_control_characters(tmp_path, capsys):
    folder = synthetic_run(tmp_path / f"run{COMMANDS}", steps=1, workers=1, requests=2)
    assert main(["report", str(folder), "-o", str(tmp_path / "a.html")]) == 0
    page = (tmp_path / "a.html").read_text()
    body = re.sub(r"<(script|style).*?</\1>", "", page, flags=re.DOTALL)
    assert "run\\x1b]52" in body
    assert CONTROLS.findall(body) == []
    assert CONTROLS.findall(capsys.readouterr().out) == []


def test_no_cell_of_csv_is_a_formula(tmp_path, capsys):
    folder = synthetic_run(tmp_path / "run", steps=1, workers=1, requests=2)
    texts = ["=1+1", "+1+1", "-1+1", "@SUM(1)", "\tx", "\rx", "-5", "+1.5e3", "a=1", ""]
    columns = ", ".join(f"'{text}' as c{number}" for number, text in enumerate(texts))
    others = "-5 as whole, -1.5 as real, ['=1', 'b'] as list, 'ab'::blob as bytes, 1 as \"=1+1\""
    assert main(["sql", str(folder), f"select {columns}, {others}", "--csv"]) == 0
    header, row = capsys.readouterr().out.splitlines()
    assert header.endswith(",'=1+1")
    cells = row.split(",", 12)
    assert cells[:10] == [
        "'=1+1",
        "'+1+1",
        "'-1+1",
        "'@SUM(1)",
        "'\\tx",
        "'\\rx",
        "-5",
        "+1.5e3",
        "a=1",
        '""',
    ]
    assert cells[10:12] == ["-5", "-1.5"], "a number is a number"
    assert cells[12].startswith("\"['=1', 'b']\",")


@pytest.mark.parametrize("as_variable", [False, True])
@pytest.mark.parametrize("source", ["--log", "--run"])
def test_an_admin_key_goes_to_typed_addresses_alone(tmp_path, capsys, monkeypatch, source, as_variable):
    with served_engines(StandIn(), StandIn()) as (typed, named):
        run = tmp_path / "run"
        (run / "profiles").mkdir(parents=True)
        (run / "profiles/a.json").write_text(json.dumps({"worker_url": named.url}))
        log = tmp_path / "train.log"
        log.write_text(f"reply: Router launched at {named.url.removeprefix('http://')}\n")
        key = [] if as_variable else ["--api-key", "secret"]
        if as_variable:
            monkeypatch.setenv("SGLANG_INSTRUMENT_API_KEY", "secret")
        from_log = [source, str(log if source == "--log" else run)]
        for action in ("check", "start", "status", "stop", "capture"):
            where = ["--output-dir", str(tmp_path / "out"), "--worker-url", typed.url]
            assert main(["profile", action, *from_log, *key, *where]) == 2
            error = capsys.readouterr().err
            assert named.url.removeprefix("http://") in error
            assert "--worker-url" in error or "--router-url" in error
        assert named.asked == typed.asked == []
        option = "--router-url" if source == "--log" else "--worker-url"
        asked = [
            "profile",
            "check",
            *from_log,
            *key,
            option,
            named.url,
            "--output-dir",
            str(tmp_path / "out"),
        ]
        main(asked)
        capsys.readouterr()
        assert named.asked, "an address that is typed, too, is asked"


def test_a_line_that_somebody_added_reaches_no_tracker(tmp_path):
    (tmp_path / "live").mkdir()
    good = {"run_id": "r", "step": 3, "scalars": {"step_sec": 1.5}}
    bad = [
        {**good, "scalars": {f"a{COMMANDS}": 1.0, "text": "x", "list": [1], "flag": True}},
        {**good, "step": "4"},
    ]
    lines = [json.dumps(line) for line in (bad[1], bad[0] | {"step": 4}, good)]
    (tmp_path / "live/scalars.jsonl").write_text("\n".join(lines) + "\n")
    scalars = Scalars(tmp_path, "r")
    scalars._read()
    assert scalars._known == {3: {"rollout/step_sec": 1.5}, 4: {}}


def test_an_admin_key_goes_to_workers_that_only_a_router_names_if_the_user_says_so(tmp_path, capsys):
    with served_engines(StandIn(), StandIn(), StandIn(kind="router")) as (typed, registered, router):
        router.workers = [typed.url, registered.url]
        behind = ["--router-url", router.url, "--output-dir", str(tmp_path / "out")]
        key = ["--api-key", "secret"]
        for action in ("check", "start", "status", "stop", "capture"):
            assert main(["profile", action, *behind, *key, "--worker-url", typed.url]) == 2
            error = capsys.readouterr().err
            assert registered.url in error
            assert typed.url not in error
            assert "--trust-router" in error
        assert typed.asked == registered.asked == []
        assert set(router.keys) == {"Bearer secret"}
        assert main(["profile", "check", *behind, *key, "--worker-url", typed.url, "--workers", "0"]) == 0
        assert (set(typed.keys), registered.keys) == ({"Bearer secret"}, [])
        assert main(["profile", "check", *behind, *key, "--trust-router"]) == 0
        assert set(registered.keys) == {"Bearer secret"}
        registered.keys.clear()
        assert main(["profile", "check", *behind]) == 0
        assert set(registered.keys) == {None}
        capsys.readouterr()
