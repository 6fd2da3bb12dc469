"""Settings are measured in turns on servers that a command starts; busy and dying servers are told."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest
from awaited import wait_for
from routed_engines import ROUTERS

from sglang_instrument.analysis import open_run
from sglang_instrument.cli.main import main
from sglang_instrument.errors import InstrumentError
from sglang_instrument.free_ports import free_port
from sglang_instrument.twin import Agenda, AgendaRequest, AgendaStep, AgendaTurn, play, write_agenda
from sglang_instrument.twin.playing.client import TwinError
from sglang_instrument.twin.playing.player import opened_player
from sglang_instrument.twin.servers.launches import launched
from sglang_instrument.twin.trials.comparison import savings
from sglang_instrument.twin.trials.figures import StepFigures, figures_of
from sglang_instrument.twin.trials.settings import RECORDED

STAND_IN = [sys.executable, str(Path(__file__).parents[1] / "support/stand_in_server.py"), "--device", "cpu"]
REQUESTS, TURNS = 8, 2


def made_agenda(steps: int = 2, tokens: int = 40) -> Agenda:
    turns = tuple(AgendaTurn(50 + 60 * turn, 50 + 40 * turn, tokens, 0.01, 0.05) for turn in range(TURNS))
    requests = tuple(
        AgendaRequest(f"r{number}", number % 2, f"g{number // 4}", 0.0, turns) for number in range(REQUESTS)
    )
    return Agenda(lambda: (AgendaStep(number, requests) for number in range(1, steps + 1)))


def counts_of(url: str) -> dict[str, float]:
    with urllib.request.urlopen(url + "/counts", timeout=60) as reply:
        return dict(json.loads(reply.read()))


@pytest.fixture
def record(tmp_path: Path) -> Path:
    """The run of a twin on a stand-in, as a record for others."""
    with launched(command(), 1, {}, tmp_path / "printed") as urls:
        play(made_agenda(), urls, name="record", log_dir=tmp_path, warm_up=False)
    return tmp_path / "record"


def command(*more: str) -> list[str]:
    return [*STAND_IN, *more]


def test_a_busy_server_is_asked_again(tmp_path: Path) -> None:
    with launched(command("--busy", "5"), 1, {}, tmp_path / "printed") as urls:
        played = play(made_agenda(1), urls, name="busy", log_dir=tmp_path, warm_up=False)
        assert counts_of(urls[0])["refused"] == 5
    assert played[0].retries == 5
    assert played[0].calls == REQUESTS * TURNS


def test_a_call_that_takes_too_long_ends_the_replay(tmp_path: Path) -> None:
    with launched(command("--token-sec", "10"), 1, {}, tmp_path / "printed") as urls:
        with pytest.raises(TwinError, match=r"a call of 50 \+ 40 tokens took longer than 0.5 s"):
            play(made_agenda(1), urls, name="slow", log_dir=tmp_path, warm_up=False, timeout_sec=0.5)
        assert counts_of(urls[0])["aborts"] == REQUESTS
        wait_for(lambda: counts_of(urls[0])["open"] == 0, "requests are still open")


def test_a_server_that_dies_in_a_step_is_named_and_what_was_played_stays(tmp_path: Path) -> None:
    def kill(_: object) -> None:
        os.kill(server.pid, signal.SIGKILL)

    port = free_port()
    server = subprocess.Popen([*command(), "--port", str(port)])
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for(lambda: answers(url), "the stand-in does not answer")
        with pytest.raises(TwinError, match=r": the server is gone: "):
            play(made_agenda(3), [url], name="dying", log_dir=tmp_path, warm_up=False, on_step=kill)
    finally:
        server.kill()
        server.wait()
    assert 1 in open_run(tmp_path / "dying").steps


def answers(url: str) -> bool:
    try:
        return bool(counts_of(url) is not None)
    except OSError:
        return False


def test_calls_that_do_not_fit_the_context_are_counted(tmp_path: Path) -> None:
    with launched(command(), 1, {}, tmp_path / "printed") as urls:
        with pytest.raises(
            TwinError, match=r"step 1: 16 of 16 calls do not fit the servers' context of 100,000"
        ):
            play(made_agenda(tokens=200_000), urls, name="long", log_dir=tmp_path)
        assert counts_of(urls[0]).get("calls") is None


def test_a_server_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InstrumentError, match=r"^http://127.0.0.1:9 does not answer: "):
        play(made_agenda(), ["http://127.0.0.1:9"], name="none", log_dir=tmp_path)


def test_an_interrupt_aborts_what_is_open(tmp_path: Path) -> None:
    async def interrupted(url: str) -> None:
        async with opened_player([url], None, None, 60.0) as player:
            [step] = made_agenda(1)
            playing = asyncio.ensure_future(player.play(step))
            while not (await asyncio.to_thread(counts_of, url)).get("open"):
                await asyncio.sleep(0.01)
            playing.cancel()
            await playing

    with launched(command("--token-sec", "10"), 1, {}, tmp_path / "printed") as [url]:
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(interrupted(url))
        assert counts_of(url)["aborts"] == REQUESTS
        wait_for(lambda: counts_of(url)["open"] == 0, "requests are still open")


def test_settings_are_ranked_by_pairs_of_steps(
    record: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    asked = ["twin", str(record), "--launch", " ".join(command("--token-sec", "0.003"))]
    asked += ["--set", "max_running_requests=1,2"]
    asked += ["--set", "servers=2", "--together", "--force", "--time", "0", "--to", str(tmp_path / "twins")]
    assert main([*asked, "--json"]) in (0, 1)
    answer = json.loads(capsys.readouterr().out)
    rows = {row["setting"]: row for row in answer["settings"]}
    assert list(rows) == ["as launched", "max_running_requests=1", "max_running_requests=2", "servers=2"]
    assert all(row["pairs"] == 2 for row in rows.values())
    # 16 calls of 120 ms, one or two at once, in place of all of a turn.
    assert rows["max_running_requests=1"]["ratio"] > rows["max_running_requests=2"]["ratio"] > 1
    assert rows["max_running_requests=1"]["queue_sec"] > rows["as launched"]["queue_sec"]
    for name in ("", ".max_running_requests=1", ".max_running_requests=2", ".servers=2"):
        run = open_run(tmp_path / f"twins/record.twin-1{name}")
        assert run.steps == [1, 2]
        assert len(run.requests()) == 2 * REQUESTS


def test_what_a_setting_saves_is_of_the_recorded_rollout(record: Path) -> None:
    run = open_run(record)
    recorded = figures_of(run)
    mean_sec = sum(figures.rollout_sec for figures in recorded.values()) / len(recorded)

    def times(factors: list[float]) -> dict[tuple[int, int], StepFigures]:
        return {
            (number, step): replace(figures, rollout_sec=factor * figures.rollout_sec)
            for number, factor in enumerate(factors)
            for step, figures in recorded.items()
        }

    measured = {RECORDED: times([1.0, 1.0]), "faster": times([0.4, 0.625]), "once": times([0.5])}
    del measured["once"][0, 2]
    saved = savings(measured, run)
    assert list(saved) == ["faster"]  # of one pair nothing is known
    assert saved["faster"].sec == pytest.approx(mean_sec / 2)
    assert saved["faster"].pairs == 4
    assert saved["faster"].low < mean_sec / 2 < saved["faster"].high < mean_sec


def test_without_likeness_nothing_is_ranked_unless_forced(
    record: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    slower = " ".join(command("--token-sec", "0.01"))
    asked = [
        "twin",
        str(record),
        "--launch",
        slower,
        "--set",
        "max_running_requests=2",
        "--to",
        str(tmp_path),
    ]
    assert main(asked) == 1
    shown = capsys.readouterr().out
    assert "these parts differ: rollout, p50 of requests" in shown
    assert "no setting was measured: --force does" in shown
    assert not (tmp_path / "record.twin-1.max_running_requests=2").exists()


def test_two_twins_of_a_record_get_folders_of_their_own(record: Path, tmp_path: Path) -> None:
    with launched(command(), 1, {}, tmp_path / "printed") as [url]:
        asked = ["twin", str(record), "--server", url, "--to", str(tmp_path / "twins")]
        for _ in range(2):
            assert main(asked) in (0, 1)
    assert sorted(path.name for path in (tmp_path / "twins").iterdir()) == ["record.twin-1", "record.twin-2"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "the twin needs servers"),
        (["--server", "http://a", "--launch", "b"], "the twin needs servers"),
        (["--server", "http://a", "--set", "a=1"], "--set needs --launch"),
        (["--server", "127.0.0.1:30000"], "must begin with http"),
        (["--launch", "'"], "No closing quotation"),
        (["--server", "http://a", "--route", "best"], "must be one of recorded, group, call"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["twin", str(tmp_path), *arguments]) == 2
    assert words in capsys.readouterr().err


def test_a_process_that_is_recorded_plays_nothing(tmp_path: Path, install: object) -> None:
    install()  # type: ignore[operator]
    with pytest.raises(InstrumentError, match="in a process of its own"):
        play(made_agenda(1), ["http://127.0.0.1:9"], name="none", log_dir=tmp_path)


def test_servers_get_calls_by_group_or_in_turn(tmp_path: Path) -> None:
    for route, shares in (("group", {8}), ("call", {8}), (None, {8})):
        with launched(command(), 2, {}, tmp_path / "printed") as urls:
            play(made_agenda(1), urls, name=f"route-{route}", log_dir=tmp_path, route=route, warm_up=False)
            assert {counts_of(url)["calls"] for url in urls} == shares
    assert write_agenda(made_agenda(), tmp_path / "agenda.jsonl") == (2, 2 * REQUESTS * TURNS)


@pytest.mark.skipif(
    not (ROUTERS / "router-0.3.2").is_dir(), reason="no router; tests/environments/router.sh makes a place"
)
@pytest.mark.parametrize("policy", ["round_robin", "cache_aware"])
def test_a_router_stands_before_the_servers(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = [str(ROUTERS / "router-0.3.2"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))
    with launched(command(), 2, {}, tmp_path / "printed", router=policy) as urls:
        assert len(urls) == 1
        [played] = play(made_agenda(1), urls, name="routed", log_dir=tmp_path, warm_up=False)
    assert played.calls == REQUESTS * TURNS
    printed = (tmp_path / "printed/router.txt").read_text(errors="replace")
    assert printed.count("/generate") >= REQUESTS * TURNS
