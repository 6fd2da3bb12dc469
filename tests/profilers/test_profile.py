"""Profilers are started all at once, and refused where they would do harm; the servers are stand-ins."""

from __future__ import annotations

import gzip
import json
import socket
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import pytest
from profile_stand_ins import StandIn, served

import sglang_instrument
from sglang_instrument.cli.main import main
from sglang_instrument.errors import ConfigError
from sglang_instrument.profilers import engines
from sglang_instrument.profilers.from_outside import notes
from sglang_instrument.profilers.http_client import ask
from sglang_instrument.profilers.in_training.find_engines import find_engines
from sglang_instrument.profilers.options import ProfileOptions, read_options
from sglang_instrument.profilers.switching import SwitchOutcome
from sglang_instrument.profilers.trace_files import files_in, wait_for_files
from sglang_instrument.profilers.trainers import router_of
from sglang_instrument.profilers.workers import WorkersError, addresses_in_log, workers_behind
from sglang_instrument.recording.safety.static_lookup import stored_attribute

PATIENCE_SEC = 300.0


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(notes, "_LEAST_FREE_BYTES", 0)


def profile(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> str:
    assert main(["profile", *map(str, arguments)]) == code, capsys.readouterr()
    out, error = capsys.readouterr()
    return error if code == 2 else out


def answer(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> Any:
    return json.loads(profile(capsys, *arguments, "--json", code=code))


def until(condition: Any) -> None:
    deadline = time.monotonic() + PATIENCE_SEC
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.02)


def nobody() -> str:
    """Return an address at which nothing listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


# --- options -------------------------------------------------------------------------------------


def test_a_request_says_only_what_was_asked_for_and_is_bounded():
    assert ProfileOptions().body("/d", "id") == {"output_dir": "/d", "profile_id": "id", "num_steps": 3}
    options = read_options("num_steps=0,activities=CPU+GPU,with_stack=0,profile_stages=decode")
    assert options.body("/d", "id") == {
        "output_dir": "/d",
        "profile_id": "id",
        "activities": ["CPU", "GPU"],
        "with_stack": False,
        "profile_stages": ["decode"],
    }


@pytest.mark.parametrize(
    ("version", "unknown"),
    [
        ("0.4.6.post5", ["merge_profiles", "profile_by_stage", "profile_prefix"]),
        ("0.4.9.post6", ["merge_profiles", "profile_prefix"]),
        ("0.5.4.post1", ["profile_prefix"]),
        ("0.5.6", []),
        ("0.5.21", []),
        (None, []),
    ],
)
def test_options_that_a_server_is_too_old_for_are_known(version, unknown):
    options = ProfileOptions(merge_profiles=True, profile_by_stage=True, profile_prefix="p")
    assert options.unknown_to(version) == unknown


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("num_step=3", "no field 'num_step'"),
        ("num_steps", "must be field=value"),
        ("num_steps=x", "num_steps='x' is not a valid value"),
        ("activities=CPU+TPU", "no activity 'TPU'"),
        ("num_steps=-1", "at least 1"),
        ("num_steps=0,profile_by_stage=1", "profile_by_stage needs num_steps"),
        ("profile_id=a/b", "without /"),
    ],
)
def test_invalid_options_are_refused_with_the_correct_form(text, words):
    with pytest.raises(ConfigError, match=words):
        read_options(text)


# --- start, stop ---------------------------------------------------------------------------------


def test_all_workers_start_at_once_and_stop_with_their_traces_whole(capsys, tmp_path):
    with served(*(StandIn() for _ in range(8))) as servers:
        urls = [server.url for server in servers]
        started = answer(capsys, "start", "--worker-url", *urls, "--output-dir", tmp_path, "--num-steps", 0)
        assert [row["state"] for row in started["workers"]] == ["started"] * 8
        folders = {server.body_of("/start_profile")["output_dir"] for server in servers}
        assert len(folders) == 8, "each worker has a folder of its own: their files have the same names"
        assert all("num_steps" not in server.body_of("/start_profile") for server in servers)

        answered = answer(capsys, "status", "--worker-url", *urls, "--output-dir", tmp_path)
        assert {row["state"] for row in answered["captures"]} == {"recording"}

        stopped = answer(capsys, "--action", "stop", "--worker-url", *urls, "--output-dir", tmp_path)
        assert [row["state"] for row in stopped["workers"]] == ["stopped"] * 8
        assert [file["whole"] for file in stopped["files"]] == [True] * 8

        answered = answer(capsys, "status", "--worker-url", *urls, "--output-dir", tmp_path)
        assert {row["state"] for row in answered["captures"]} == {"written"}


def test_stop_without_start_is_no_error_and_is_reported(capsys, tmp_path):
    with served(StandIn()) as (server,):
        shown = profile(capsys, "stop", "--worker-url", server.url, "--output-dir", tmp_path)
    assert "idle" in shown
    assert "was never started" in shown


def test_hanging_and_dead_servers_are_asked_once_and_named_and_the_others_record(capsys, tmp_path):
    with served(StandIn(), StandIn(hangs_on=("/start_profile",))) as (well, hanging):
        gone = nobody()
        shown = profile(
            *(capsys, "start", "--worker-url", well.url, hanging.url, gone, "--output-dir", tmp_path),
            *("--timeout", 8, "--retries", 3),
            code=1,
        )
        assert hanging.paths().count("/start_profile") == 1, "it may have received the request"
    assert "1 of 3 workers, 2 failed" in shown
    assert f"worker 1, {hanging.url}: no answer within 8 s" in shown
    assert f"worker 2, {gone}: connection refused" in shown
    assert well.recording is not None


def test_a_second_start_is_refused_for_the_engine_would_forget_the_first(capsys, tmp_path):
    with served(StandIn()) as (server,):
        arguments = ("start", "--worker-url", server.url, "--output-dir", tmp_path)
        profile(capsys, *arguments)
        assert "has been profiled for" in profile(capsys, *arguments, code=2)
        profile(capsys, *arguments, "--force")
        assert server.paths().count("/start_profile") == 2


def test_an_older_server_is_said_to_leave_out_what_it_does_not_know(capsys, tmp_path):
    with served(StandIn(version="0.4.6.post5"), StandIn()) as (old, new):
        shown = profile(
            *(capsys, "start", "--worker-url", old.url, new.url, "--output-dir", tmp_path),
            *("--profile-by-stage", "--merge-profiles"),
        )
    assert "worker 0: sglang 0.4.6.post5 is too old for merge_profiles, profile_by_stage: left out" in shown
    assert "worker 1:" not in shown


def test_a_folder_that_cannot_be_written_is_refused_before_an_engine_dies_of_it(capsys, tmp_path):
    (tmp_path / "file").write_text("")
    with served(StandIn()) as (server,):
        arguments = ("start", "--worker-url", server.url, "--output-dir", tmp_path / "file" / "traces")
        assert "SGLang's server ends when" in profile(capsys, *arguments, code=2)
    assert "/start_profile" not in server.paths()


def test_a_disk_with_too_little_room_is_refused(tmp_path):
    with pytest.raises(notes.FolderError, match="make room"):
        notes.check_folder(str(tmp_path), ["http://127.0.0.1:1"], least_free_bytes=2**62)
    words = notes.check_folder(str(tmp_path), ["http://203.0.113.7:1"], least_free_bytes=2**62)
    assert "on the workers' machines" in words


def test_a_profiler_that_stops_by_itself_on_another_machine_is_not_shown_as_recording(tmp_path):
    for steps, url, recording in (
        (3, "http://203.0.113.7:1", False),
        (None, "http://203.0.113.7:1", True),
        (3, "http://127.0.0.1:1", True),
    ):
        options = ProfileOptions(output_dir=str(tmp_path / f"{steps}-{recording}"), num_steps=steps)
        folder = str(tmp_path / "elsewhere")
        started = SwitchOutcome(0, url, True, "started", "sglang", "", "id", folder)
        notes.write_note(options, "id", [started])
        assert bool(notes.running(options.output_dir, [url])) is recording


# --- capture -------------------------------------------------------------------------------------


def test_capture_starts_asks_stops_lists_and_analyses(capsys, tmp_path):
    with served(StandIn(), StandIn()) as servers:
        urls = [server.url for server in servers]
        shown = profile(capsys, "capture", "--worker-url", *urls, "--output-dir", tmp_path, "--requests", 2)
    assert "2 of 2 workers" in shown
    assert "4 of 4 probe requests were answered" in shown
    assert shown.count("TP-0.trace.json.gz") >= 2
    assert "aten::mm" in shown
    assert all("/stop_profile" not in server.paths() for server in servers), "they had stopped by themselves"


def test_capture_stops_what_did_not_stop_by_itself(capsys, tmp_path):
    with served(StandIn()) as (server,):
        done = answer(
            *(capsys, "capture", "--worker-url", server.url, "--output-dir", tmp_path),
            *("--num-steps", 0, "--requests", 1),
        )
    assert [row["state"] for row in done["stopped"]] == ["stopped"]
    assert [file["whole"] for file in done["files"]] == [True]


def test_a_capture_without_a_trace_says_so_and_fails(capsys, tmp_path):
    with served(StandIn(writes=False)) as (server,):
        shown = profile(
            *(capsys, "capture", "--worker-url", server.url, "--output-dir", tmp_path),
            *("--requests", 1, "--timeout", 3),
            code=1,
        )
    assert "no trace was found" in shown


def test_a_server_that_dies_between_the_stages_of_a_capture_is_no_success(capsys, tmp_path):
    with served(StandIn(dies_after="EXTEND")) as (server,):
        shown = profile(
            *(capsys, "capture", "--worker-url", server.url, "--output-dir", tmp_path, "--requests", 1),
            *("--profile-by-stage", "--num-steps", 2, "--timeout", 3),
            code=1,
        )
    assert list(tmp_path.rglob("*-EXTEND.trace.json.gz"))
    assert "0 of 1 probe requests were answered: the workers' own logs tell why" in shown


def test_a_capture_that_would_never_end_is_refused(capsys, tmp_path):
    with served(StandIn()) as (server,):
        arguments = ("--output-dir", tmp_path, "--num-steps", 0, "--requests", 0)
        assert "would never end" in profile(capsys, "capture", "--worker-url", server.url, *arguments, code=2)


# --- vLLM: a stand-in with its routes --------------------------------------------------------------


def test_vllm_is_started_and_stopped_and_its_limits_are_said(capsys, tmp_path):
    with served(StandIn(kind="vllm", version="0.11.0")) as (server,):
        shown = profile(capsys, "start", "--worker-url", server.url, "--output-dir", tmp_path)
        assert "vllm 0.11.0" in shown
        assert "vLLM takes no options" in shown
        profile(capsys, "stop", "--worker-url", server.url, "--output-dir", tmp_path)
    assert [path for path in server.paths() if "profile" in path] == ["/start_profile", "/stop_profile"]


def test_vllm_that_fails_to_write_in_time_is_no_idle_one(capsys, tmp_path):
    with served(StandIn(kind="vllm", fails_on=("/stop_profile",))) as (server,):
        shown = profile(capsys, "stop", "--worker-url", server.url, "--output-dir", tmp_path, code=1)
    assert "VLLM_RPC_TIMEOUT=1800000" in shown


def test_check_says_which_of_arguments_forwarding_and_routes_vllm_lacks(capsys, tmp_path):
    log = tmp_path / "train.log"
    log.write_text("vllm_profiler_config ... profiler='torch' torch_profiler_dir='/x'\n")
    with served(StandIn(kind="vllm", configured=False)) as (server,):
        arguments = ("--worker-url", server.url, "--log", log, "--output-dir", tmp_path)
        log.write_text(log.read_text() + f"Starting vLLM server on {server.url}\n")
        findings = answer(capsys, "check", *arguments, code=1)["checks"]
        said = {finding["what"]: finding for finding in findings if finding["url"] == str(log)}
        assert (said["arguments"]["ok"], said["forwarding"]["ok"], said["routes"]["ok"]) == (
            True,
            False,
            False,
        )
        (routes,) = [row for row in findings if row["what"] == "routes" and row["url"] == server.url]
        assert "--profiler-config" in routes["words"]
        assert any("VLLM_RPC_TIMEOUT=1800000" in row["words"] for row in findings)
        shown = profile(capsys, "start", *arguments, code=1)
        assert "it has no /start_profile: start vLLM with --profiler-config" in shown


def test_check_starts_nothing(capsys, tmp_path):
    with served(StandIn(), StandIn(kind="vllm")) as servers:
        urls = [server.url for server in servers]
        profile(capsys, "check", "--worker-url", *urls, "--output-dir", tmp_path)
    assert all(server.recording is None and not server.paths() for server in servers)


# --- where the workers are -------------------------------------------------------------------------


def test_a_trainers_log_names_its_router_or_its_servers(tmp_path):
    log = tmp_path / "train.log"
    log.write_text(
        "\x1b[36m(RolloutManager pid=1)\x1b[0m Router launched at 10.0.0.1:3000, Prometheus port: 4153\n"
        "Ports for engine 0: {'host': '10.0.0.4', 'port': 15000, 'nccl_port': 1}\n"
        "Router launched at 10.0.0.1:3521, Prometheus port: 4153\n"
    )
    assert addresses_in_log(log) == (["10.0.0.1:3521"], ["10.0.0.4:15000"])
    log.write_text("LLMServerManager: ['10.0.0.4:1', '10.0.0.5:2']\n")
    assert addresses_in_log(log) == ([], ["10.0.0.4:1", "10.0.0.5:2"])
    log.write_text("nothing\n")
    with pytest.raises(WorkersError, match="no line names a router"):
        addresses_in_log(log)


def test_a_server_that_is_no_router_is_said_to_be_one(capsys):
    with served(StandIn()) as (server,), pytest.raises(WorkersError, match="is it a server"):
        workers_behind([server.url])
    assert "routers take a new port in each job" in profile(
        capsys, "status", "--router-url", nobody(), code=2
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "profile needs an action"),
        (("start", "--action", "stop"), "give one action"),
        (("start",), "profile needs workers"),
        (("start", "--worker-url", "http://"), "is no address"),
        (("start", "--worker-url", "127.0.0.1:1", "--num-steps", "-1"), "at least 1"),
        (("start", "--worker-url", "127.0.0.1:1", "--workers", "7"), "the workers are 0 to 0"),
        (("start", "--worker-url", "127.0.0.1:1", "--workers", "x"), "write 5-7,20"),
        (("start", "--log", "/nowhere/train.log"), "No such file"),
    ],
)
def test_contradictory_arguments_are_refused_in_one_line(capsys, arguments, words):
    error = profile(capsys, *arguments, code=2)
    assert words in error
    assert error.count("\n") == 1


# --- files -----------------------------------------------------------------------------------------


def test_a_trace_that_is_cut_is_not_whole_and_one_that_grows_is_waited_for(tmp_path):
    packed = gzip.compress(json.dumps({"traceEvents": ["x" * 1000]}).encode())
    trace = tmp_path / "a-TP-0.trace.json.gz"
    trace.write_bytes(packed[:-9])
    assert [file.whole for file in files_in(tmp_path)] == [False]
    threading.Timer(0.3, trace.write_bytes, (packed,)).start()
    (files,) = wait_for_files([tmp_path], timeout_sec=PATIENCE_SEC)
    assert [file.whole for file in files] == [True]


# --- from Python, and in a run -----------------------------------------------------------------------


def test_one_api_and_the_trainers_names_for_it(tmp_path):
    class Arguments:
        sglang_router_ip, sglang_router_port = "127.0.0.1", 1

    class Adapter:  # a stand-in for verl's AsyncHttpServerAdapter
        def __init__(self, url: str) -> None:
            host, _, port = url.removeprefix("http://").partition(":")
            self.server_args = type("Settings", (), {"host": host, "port": int(port)})()

    with served(StandIn(), StandIn()) as (first, two):
        engines.start_profile_auto_stop([first.url, Adapter(two.url)], output_dir=str(tmp_path), num_steps=5)
        assert [server.recording["num_steps"] for server in (first, two)] == [5, 5]
        engines.stop_profile([first.url, Adapter(two.url)])
        engines.start_capture_profile(first.url, output_dir=str(tmp_path))
        assert "num_steps" not in first.recording
        engines.stop_capture_profile(first.url)
        assert engines.stop(first.url)[0].state == "idle"
    assert router_of(Arguments()) == "http://127.0.0.1:1"
    with pytest.raises(engines.ProfileError, match="connection refused"):
        engines.start(nobody(), output_dir=str(tmp_path))
    with pytest.raises(engines.ProfileError, match="has no profiler that we know"):
        engines.start(3)


class Rollout:
    """A stand-in for verl's manager, which knows the addresses of its servers."""

    def __init__(self, *urls: str) -> None:
        self.server_addresses = list(urls)

    def generate_sequences(self, step: int, done: Any = lambda: True, **bound: Any) -> None:
        with sglang_instrument.bind(step=step, **bound), sglang_instrument.span("total_step_duration"):
            until(done)


def test_looking_for_an_engine_keeps_nothing_alive_and_changes_no_dictionary_of_the_trainers():
    class Batch:
        pass

    def finds(self):
        batch = Batch()
        known = weakref.ref(batch)
        engines_found = find_engines(1)
        del batch
        return engines_found, known()

    def reads_its_own(self, other=2):
        given = locals()
        del given["other"]
        find_engines(1)
        return given

    rollout = Rollout("http://127.0.0.1:1")
    engines_found, alive = finds(rollout)
    assert engines_found.urls == ("http://127.0.0.1:1",)
    assert alive is None
    assert reads_its_own(rollout) == {"self": rollout}


def test_looking_for_an_engine_computes_no_attribute_of_the_trainers():
    asked: list[str] = []

    class Slotted:
        __slots__ = ("server_host", "server_port")

        def __init__(self) -> None:
            self.server_host, self.server_port = "::1", 7

    class Computed:
        rollout: Any = Slotted()
        start_profile = classmethod(lambda cls: None)

        @property
        def tokenizer_manager(self) -> None:
            asked.append("property")

        def __getattr__(self, name: str) -> None:
            asked.append(name)

    def begins(self: Any) -> Any:
        return find_engines(1)

    assert begins(Computed()).urls == ("http://[::1]:7",)
    assert stored_attribute(Computed(), "start_profile") is not None
    assert stored_attribute(Slotted.__new__(Slotted), "server_host") is None
    assert asked == []


def test_chosen_steps_are_profiled_from_their_begin_to_their_end_and_noted(install, tmp_path, records_below):
    with served(StandIn(), StandIn()) as (first, second):
        folder = install(profile_steps="2", profile_workers="0", profile_options="num_steps=0")
        rollout = Rollout(first.url, second.url)
        rollout.generate_sequences(1)
        rollout.generate_sequences(2, validate=True)
        assert first.asked == []
        rollout.generate_sequences(2, lambda: first.recording is not None)
        until(lambda: list(folder.glob("profiles/*/worker_0/*.trace.json.gz")))
        rollout.generate_sequences(2)  # the second rollout of a step is not profiled
        rollout.generate_sequences(3)
        sglang_instrument.uninstall()
    assert [path for path in first.paths() if "profile" in path] == ["/start_profile", "/stop_profile"]
    assert second.paths() == [], "worker 0 was asked for"
    body = first.body_of("/start_profile")
    assert body["profile_id"] == "run-step_2-worker_0"
    assert list(folder.glob("profiles/run-step_2/worker_0/run-step_2-worker_0-TP-0.trace.json.gz"))
    note = json.loads((folder / "profiles" / "run-step_2-worker_0.json").read_text())
    assert (note["step"], note["worker_url"], note["folder"]) == (2, first.url, body["output_dir"])
    events = [
        event for event in records_below(folder)["step_2/worker_0.jsonl"] if event["event"] == "profile_start"
    ]
    assert [event["extra"]["profile_id"] for event in events] == ["run-step_2-worker_0"]


def test_a_step_that_is_over_before_its_profiler_could_start_is_not_recorded_as_another(install):
    with served(StandIn(hangs_on=("/stop_profile",))) as (server,):
        install(profile_steps="1-2", profile_options="num_steps=0")
        rollout = Rollout(server.url)
        rollout.generate_sequences(1, lambda: server.recording is not None)
        until(lambda: "/stop_profile" in server.paths())
        rollout.generate_sequences(2)
        server.over.set()
        until(
            lambda: any(
                "step 2 ended before" in notice["notice"] for notice in sglang_instrument.status()["notices"]
            )
        )
    assert server.paths().count("/start_profile") == 1


def test_a_profiler_that_stopped_before_the_end_of_the_step_is_not_stopped_again(install):
    with served(StandIn()) as (server,):

        def recorded() -> bool:
            if server.recording is None:
                return "/generate" in server.paths()
            return ask("POST", f"{server.url}/generate", body={}).ok  # it has recorded its steps

        folder = install(profile_steps="1")
        Rollout(server.url).generate_sequences(1, recorded)
        sglang_instrument.uninstall()
    assert list(folder.glob("profiles/run-step_1/worker_0/*.trace.json.gz"))
    assert "/stop_profile" not in server.paths()


def test_a_profiler_that_fails_or_hangs_is_reported_once_and_does_not_delay_the_step(install, caplog):
    with served(StandIn(fails_on=("/start_profile",))) as (server,):
        install(profile_steps="1-3", profile_workers="all")
        rollout = Rollout(server.url)
        for step in (1, 2, 3):
            rollout.generate_sequences(step, lambda step=step: server.paths().count("/start_profile") == step)
        until(
            lambda: any("profiler of" in notice["notice"] for notice in sglang_instrument.status()["notices"])
        )
    with served(StandIn(hangs_on=("/start_profile", "/server_info"))) as (server,):
        sglang_instrument.uninstall()
        install(profile_steps="1", profile_workers="all", experiment="other")
        rollout = Rollout(server.url)
        rollout.generate_sequences(1, lambda: "/start_profile" in server.paths())  # although the server hangs
        name = "sglang-instrument-profile"
        ours = [thread for thread in threading.enumerate() if thread.name.startswith(name)]
        assert ours
        assert all(thread.daemon for thread in ours), "or the training could not end"
        sglang_instrument.uninstall()


def test_of_two_processes_with_the_same_servers_one_alone_starts_them(install, start_script):
    with served(StandIn()) as (server,):
        source = """
            import sglang_instrument as si, sys
            si.install(profile_steps="1", run_id="r1", profile_router="", profile_options="num_steps=0")
            class Rollout:
                server_addresses = [URL]
                def run(self):
                    with si.step(1):
                        print("in", flush=True)
                        sys.stdin.readline()
            Rollout().run()
        """.replace("URL", repr(server.url))
        scripts = [start_script(source, RANK=rank) for rank in ("0", "1")]
        for script in scripts:
            script.says("in")
        until(lambda: server.recording is not None)
        for script in scripts:
            script.tell("end")
            script.wait()
    assert server.paths().count("/start_profile") == 1


def test_a_slow_request_has_the_most_loaded_server_recorded_and_only_once(install, records_below):
    with served(StandIn(requests=1), StandIn(requests=9)) as (idle, busy):
        folder = install(profile_when="request>0.2s", profile_workers="all")

        class Slow(Rollout):
            def generate_sequences(self, step, done=None, **bound):
                with sglang_instrument.bind(step=step, request_id="r7"):
                    with sglang_instrument.span("async_rollout_request_complete"):
                        until(lambda: busy.recording is not None)
                    with sglang_instrument.span("async_rollout_request_complete"):
                        time.sleep(0.5)

        Slow(idle.url, busy.url).generate_sequences(4)
        until(lambda: list(folder.glob("profiles/*.json")))  # which is written after the event
        sglang_instrument.uninstall()
    assert idle.paths() == []
    assert busy.paths().count("/start_profile") == 1
    assert busy.body_of("/start_profile")["num_steps"] == 20
    (event,) = [
        line for line in records_below(folder)["step_4/worker_0.jsonl"] if line["event"] == "profile_start"
    ]
    assert event["extra"]["load"]["running"] == 9
    assert event["extra"]["why"]["request_id"] == "r7"


def test_invalid_settings_are_refused_as_keywords_and_skipped_as_variables(install, monkeypatch):
    for wrong in (
        {"profile_steps": "five"},
        {"profile_steps": "1", "profile_options": "colour=red"},
        {"profile_when": "request>soon"},
        {"profile_workers": "first", "profile_steps": "1"},
    ):
        with pytest.raises(ConfigError):
            install(**wrong)
        sglang_instrument.uninstall()
    monkeypatch.setenv("SGLANG_INSTRUMENT_PROFILE_STEPS", "1")
    monkeypatch.setenv("SGLANG_INSTRUMENT_PROFILE_OPTIONS", "colour=red")
    install()
    assert any("colour" in notice["notice"] for notice in sglang_instrument.status()["notices"])


def test_a_run_without_profiling_imports_no_profiler_code(run_script):
    run_script("""
        import sys, sglang_instrument
        sglang_instrument.install()
        with sglang_instrument.step(1):
            pass
        assert not [name for name in sys.modules if name.startswith("sglang_instrument.profiling")]
        assert "http.client" not in sys.modules
    """)


def test_a_rollout_that_sleeps_says_how_to_reach_the_engines_and_can_be_woken(run_script, tmp_path):
    wake = tmp_path / "wake"
    script = run_script(
        """
        import threading, pathlib, os
        from sglang_instrument.rollout import sleep
        class Arguments:
            sglang_router_ip, sglang_router_port = "127.0.0.1", 9
        wake = pathlib.Path(os.environ["SGLANG_INSTRUMENT_WAKE"])
        threading.Timer(1.0, wake.touch).start()
        sleep(Arguments, 3, None, evaluation=False)
        """,
        code=1,
        SGLANG_INSTRUMENT_WAKE=str(wake),
        SGLANG_INSTRUMENT_HEARTBEAT_SEC="0.2",
    )
    assert "rollout 3 has waited for 0 s" in script.stderr
    assert "profile capture --router-url http://127.0.0.1:9" in script.stderr
    assert "ended by" in script.stderr
    assert "Traceback" not in script.stderr


def test_nobody_else_can_wake_a_rollout_that_sleeps(start_script, tmp_path):
    script = start_script(
        """
        import os, pathlib, tempfile, threading, time
        from sglang_instrument.rollout import sleep
        (pathlib.Path(tempfile.gettempdir()) / f"sglang-instrument-wake-{os.getpid()}").touch()
        sleep(None, 3)
        """,
        SGLANG_INSTRUMENT_HEARTBEAT_SEC="0.1",
        TMPDIR=str(tmp_path),
    )
    said = script.process.stderr.readline()
    wake = Path(said.rpartition("touch ")[2].strip())
    assert wake.parent.stat().st_mode & 0o777 == 0o700
    assert wake.parent.parent == tmp_path
    for _ in range(3):  # it has looked for the file, and goes on
        assert "has waited for" in script.process.stderr.readline()
    wake.touch()
    script.wait(1)
    assert f"ended by {wake}" in script.stderr
    assert not wake.parent.exists()


def test_other_files_are_not_traces(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "profile.json").write_text("{}")
    assert files_in(tmp_path) == []
