"""Commands read and write only regular files: others of the same name are reported and block nothing."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest
from made_traces import engine_trace

from sglang_instrument.analysis import open_run
from sglang_instrument.analysis.reading.chunks import whole_lines
from sglang_instrument.analysis.store import homes
from sglang_instrument.cli.main import main
from sglang_instrument.errors import LogError
from sglang_instrument.profilers.from_outside import notes
from sglang_instrument.testing import synthetic_run

#: Time after which a test counts as hanging; each takes far less.
pytestmark = pytest.mark.usefixtures("no_waiting_for_ever")
COMMANDS = {
    "summary": [],
    "events": [],
    "requests": [],
    "workers": [],
    "turns": [],
    "lengths": [],
    "gaps": [],
    "loop": [],
    "staleness": ["--by-worker", "--groups"],
    "waste": [],
    "whatif": ["--max-tokens", "100"],
    "advise": [],
    "check": [],
    "status": [],
    "sql": ["from processes full join (from spans limit 3) on true"],
}


@pytest.fixture
def no_waiting_for_ever():
    """End the whole process when a test hangs: a blocked open() cannot be interrupted otherwise."""
    import faulthandler

    faulthandler.dump_traceback_later(1800, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


def make_socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # the path of a socket is limited to 100 characters
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path.name)
    finally:
        os.chdir(here)


def linked_fifo(path: Path) -> None:
    hidden = path.with_name(f".fifo of {path.stem}")
    os.mkfifo(hidden)
    path.symlink_to(hidden)


KINDS: dict[str, Callable[[Path], object]] = {
    "a FIFO": os.mkfifo,
    "a link to a FIFO": linked_fifo,
    "a link to a device that never ends": lambda path: path.symlink_to("/dev/zero"),
    "a link to a device that waits": lambda path: path.symlink_to("/dev/ptmx"),
    "a socket": make_socket,
    "a folder": Path.mkdir,
    "a link to itself": lambda path: path.symlink_to(path),
}


@pytest.fixture(params=KINDS)
def odd(request):
    """Make a file of one irregular kind."""
    return KINDS[request.param]


def make_all_kinds(folder: Path, name: str) -> list[str]:
    """Make a file of each irregular kind in a folder; `name` has a place for a number. Return their names."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [name.format(number) for number in range(20, 20 + len(KINDS))]
    for made, make in zip(names, KINDS.values(), strict=True):
        make(folder / made)
    return names


@pytest.fixture
def run(tmp_path):
    folder = synthetic_run(tmp_path / "run", steps=2, workers=2, requests=4)
    described = {"run_id": "r", "role": "worker", "rank": 0, "host": "elsewhere", "pid": 1}
    (folder / "processes").mkdir(exist_ok=True)
    for rank in range(2):
        (folder / "processes" / f"worker_{rank}.json").write_bytes(orjson.dumps({**described, "rank": rank}))
    return folder


@pytest.fixture
def printed(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")

    def call(*arguments: object) -> str:
        assert main([str(argument) for argument in arguments]) in (0, 1, 2)
        out, error = capsys.readouterr()
        assert "Traceback" not in error
        return out + error

    return call


def test_logs_and_processes_that_are_not_regular_files_end_no_command_and_logs_are_named(run, printed):
    odd = [
        f"{place}/{name}"
        for place, pattern in (
            ("step_1", "worker_{}.jsonl"),
            ("step_2", "worker_{}.jsonl.zst"),
            ("engine", "server_{}.jsonl"),
        )
        for name in make_all_kinds(run / place, pattern)
    ]
    make_all_kinds(run / "processes", "worker_{}.json")
    make_all_kinds(run / "processes/reached", "host-{}.json")
    for command, options in COMMANDS.items():
        assert printed(command, run, *options)
    said = printed("summary", run)
    assert "2 steps, 2 workers, 16 requests" in said
    assert [name for name in odd if name not in said] == []
    assert sorted(json.loads(printed("check", run, "--json"))["health"]["unreadable"]) == sorted(odd)
    printed("report", run, "-o", run.parent / "report.html")
    printed("export", run, "--perfetto", run.parent / "run.pftrace")


def test_links_to_regular_files_are_read(run, printed):
    elsewhere = run.parent / "elsewhere.jsonl"
    (run / "step_1/worker_0.jsonl").rename(elsewhere)
    (run / "step_1/worker_0.jsonl").symlink_to(elsewhere)
    assert "16 requests" in printed("summary", run)


def test_files_in_the_place_of_folders_are_not_read(run, printed):
    for name in ("step_7", "engine", "processes/reached"):
        os.mkfifo(run / name)
    for command, options in COMMANDS.items():
        printed(command, run, *options)


def test_a_process_file_that_is_not_a_regular_file_is_named(run, printed):
    odd = make_all_kinds(run / "processes", "worker_{}.json")
    odd += make_all_kinds(run / "processes/reached", "host-{}.json")
    said = printed("status", run)
    assert [name for name in odd if f"processes/{name} cannot be read" not in said] == []
    printed("profile", "status", "--run", run)


def test_a_line_that_never_ends_takes_no_memory(run, printed):
    path = run / "step_1/worker_0.jsonl"
    with path.open("ab") as file:
        file.truncate(file.tell() + 2**27)  # a sparse file; a line of half the size is too long
        file.seek(0, os.SEEK_END)
        file.write(b'\n{"timestamp": "2026-01-05T08:00:01+00:00", "event": "behind", "duration_sec": 1.0}\n')
    with path.open("rb") as file:
        assert max(map(len, whole_lines(file))) < 2**27
    read = open_run(run, cached=False)
    assert read.health.foreign == 1
    assert "behind" in read.records["event"].to_list()
    assert "1 foreign line" in printed("summary", run)


def test_the_rest_of_a_line_that_is_too_long_is_no_record(run):
    path = run / "step_1/worker_0.jsonl"
    with path.open("ab") as file:
        file.write(b'{"timestamp": "2026-01-05T08:00:01+00:00", "event": "long", "error": "')
        for _ in range(70):  # a line of 64 MiB is too long
            file.write(b"x" * 2**20)
        file.write(b'", "duration_sec": 1.0}\n')
    read = open_run(run, cached=False)
    assert read.health.torn + read.health.foreign == 1
    assert "long" not in read.records["event"].to_list()


def test_a_store_with_an_irregular_file_is_made_again(run, odd, monkeypatch):
    monkeypatch.setattr(homes, "_WORTHWHILE_BYTES", 0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(run.parent / "cache"))
    expected = open_run(run).digest.requests
    for name in ("index", "files", "steps", "requests", "turns", "barriers"):
        path = next(file for file in (run / ".store").rglob(f"{name}.*") if file.is_file())
        path.unlink()
        odd(path)
        assert open_run(run).digest.requests.equals(expected)
    shutil.rmtree(run / ".store")
    odd(run / ".store")
    assert open_run(run).digest.requests.equals(expected)
    assert open_run(run).digest.requests.equals(expected)


def test_traces_and_notes_that_are_not_regular_files_are_ignored(tmp_path, printed):
    folder = tmp_path / "traces"
    make_all_kinds(folder / "one", "17-TP-{}.trace.json.gz")
    engine_trace().write(folder / "one" / "17-TP-0.trace.json.gz")
    for number, make in enumerate(KINDS.values()):
        (folder / f"two_{number}").mkdir()
        make(folder / f"two_{number}/profile.json")
    assert "GPU" in printed("trace", folder)
    printed("export", "--perfetto", tmp_path / "all.pftrace", "--traces", folder)
    printed("profile", "status", "--worker-url", "127.0.0.1:9", "--output-dir", folder)
    for name in make_all_kinds(tmp_path, "train_{}.log"):
        assert name in printed("profile", "status", "--log", tmp_path / name)
        assert name in printed("profile", "check", "--log", tmp_path / name)


@pytest.mark.parametrize(
    "note",
    [
        b"[]",
        b"[" * 100_000,
        b'{"workers": [1]}',
        b'{"workers": [], "started_unix": "soon"}',
        b'{"workers": [{"url": "http://127.0.0.1:9", "folder": 5}]}',
        b'{"workers": [{"url": "http://127.0.0.1:9", "folder": "a\\u0000b"}], "started_unix": NaN}',
        b'{"workers": [{"url": "http://127.0.0.1:9"}], "options": 3}',
        b'{"workers": [{"url": ["http://127.0.0.1:9"]}]}',
        b"\xff\x00",
        b"",
    ],
)
def test_a_note_of_another_user_is_ignored(note, tmp_path, printed):
    """The folder of traces is often a shared one below /tmp."""
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "profile.json").write_bytes(note)
    for action in ("status", "stop"):
        printed("profile", action, "--worker-url", "127.0.0.1:9", "--output-dir", tmp_path, "--timeout", "1")


def test_what_others_put_into_the_folder_of_traces_is_neither_followed_nor_waited_for(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("kept")
    traces = tmp_path / "traces"
    traces.mkdir()
    for name in (f".writable-{os.getpid()}", "one"):
        (traces / name).symlink_to(victim) if name != "one" else (traces / name).mkdir()
    (traces / "one" / "profile.json").symlink_to(victim)
    notes.check_folder(str(traces), ["http://127.0.0.1:9"], least_free_bytes=0)
    assert notes.write_note(notes.ProfileOptions(output_dir=str(traces)), "one", []) == traces / "one"
    assert victim.read_text() == "kept"
    assert json.loads((traces / "one" / "profile.json").read_text())["profile_id"] == "one"


def test_tables_and_sources_that_are_not_regular_files_are_refused(tmp_path, odd, printed):
    odd(tmp_path / "mine.toml")
    assert "mine.toml" in printed("patches", "list", "--patches", tmp_path)
    source = tmp_path / "source"
    (source / "sglang").mkdir(parents=True)
    odd(source / "sglang" / "__init__.py")
    assert printed("patches", "check", "--source", source)
    for name in ("sglang-1.whl", "sglang-1.tar.gz"):
        odd(tmp_path / name)
        assert name in printed("patches", "check", "--source", tmp_path / name)


BAD = {
    "nothing": b"",
    "no JSON": b"{",
    "binary": bytes(range(256)) * 50,
    "another type": b"[1, 2]",
    "a text": b'"running"',
    "deep": b'{"settings": ' + b"[" * 900 + b"]" * 900 + b"}",
    "too deep": b"[" * 100_000,
    "NaN": b'{"pid": NaN}',
    "lone surrogate": b'{"host": "\\ud800"}',
    "patches of texts": b'{"patches": ["found"]}',
    "patches without a state": b'{"patches": [{"event": "a"}]}',
    "patches in a text": b'{"patches": "found"}',
    "notices of numbers": b'{"notices": [3]}',
    "times of texts": b'{"notices": [{"notice": "a", "times": "often"}]}',
    "records of texts": b'{"records": {"recorded": "many", "dropped": []}}',
    "records in a list": b'{"records": [1]}',
    "versions of numbers": b'{"versions": {"verl": 3}}',
    "versions in a list": b'{"versions": ["verl"]}',
    "pid of letters": b'{"pid": "../../etc/passwd", "host": "HOST"}',
    "pid of a fraction": b'{"pid": 1.5, "host": "HOST"}',
    "a large pid": b'{"pid": 99999999999999999999999999, "host": "HOST"}',
    "a pid of many digits": b'{"pid": ' + b"9" * 5000 + b', "host": "HOST"}',
    "a negative pid": b'{"pid": -1, "host": "HOST"}',
    "host in a list": b'{"host": ["HOST"]}',
    "run_id in an object": b'{"run_id": {}}',
    "role of a number": b'{"role": 3, "rank": "x"}',
    "command of a number": b'{"command": 3}',
    "everything null": b'{"run_id": null, "role": null, "patches": null, "notices": null, "records": null}',
    "huge": b'{"host": "' + b"x" * 20_000_000 + b'"}',
}


#: Values that are odd but unused, or numbers that any process may have.
READABLE = ("deep", "a negative pid", "command of a number")


def test_invalid_self_descriptions_are_named_and_end_no_command(run, printed):
    (run / "processes" / "reached").mkdir()
    for number, content in enumerate(BAD.values(), 10):
        content = content.replace(b"HOST", os.uname().nodename.encode())
        (run / "processes" / f"worker_{number}.json").write_bytes(content)
        (run / "processes" / "reached" / f"host-{number}.json").write_bytes(content)
    (run / "processes" / "worker_\u00b2.json").write_text("{}")  # a digit, but not a number
    for command, options in COMMANDS.items():
        assert printed(command, run, *options)
        assert json.loads(printed(command, run, *options, "--json"))
    unreadable = json.loads(printed("status", run, "--json"))["unreadable"]
    named = [kind for number, kind in enumerate(BAD, 10) if f"worker_{number}.json" in unreadable]
    assert named == [kind for kind in BAD if kind not in READABLE]
    printed("report", run, "-o", run.parent / "report.html")
    printed("profile", "status", "--run", run)


def test_status_lists_the_others_if_some_processes_cannot_be_read(run, printed):
    (run / "processes" / "worker_9.json").write_text('{"patches": [1]}')
    said = printed("status", run)
    assert "worker_0" in said
    assert "processes/worker_9.json cannot be read: Expected `object`" in said


def test_a_run_whose_processes_cannot_be_read_at_all_says_so(run, printed):
    for path in (run / "processes").glob("*.json"):
        path.write_text("{")
    assert "processes/ holds no readable file" in printed("status", run)


def test_invalid_reports_of_open_spans_end_no_command(run, printed):
    path = run / "step_2/worker_0.jsonl"
    ends = ("step_closed", "log_closed")
    lines = [line for line in path.read_text().splitlines() if not any(end in line for end in ends)]
    odd = {
        "event": ["5", "null", "[]"],
        "age_sec": ['"old"', "[]", "1e400", "null", "-5"],
        "turn": ['"first"', "{}", "1e400", "1.5"],
        "request_id": ["{}", "[1]", "1e400"],
        "stack": ["{}", '""', "[[[1]]]", "7", "[null]"],
    }
    sound = {"event": '"tool_execution"', "age_sec": "31.5", "turn": "0", "request_id": '"r"', "stack": "[]"}
    spans = ["3", *(_object({**sound, key: value}) for key, values in odd.items() for value in values)]
    stamp = json.loads(lines[-1])["timestamp"]
    for spans_told in (spans, [*spans, _object(sound)]):
        report = _object({"spans": f"[{', '.join(spans_told)}]"})
        report_line = _object({"timestamp": f'"{stamp}"', "event": '"open_spans"', "extra": report})
        path.write_text("\n".join([*lines, report_line]) + "\n")
        for command in ("check", "summary", "workers", "requests"):
            printed(command, run)
            printed(command, run, "--json")
        assert "1 foreign line" in printed("check", run)
    shown = json.loads(printed("check", run, "--json"))["open"]
    assert {(span["event"], span["age_sec"]) for span in shown} == {("tool_execution", 31.5)}
    # An odd request or turn costs itself, not its span.
    assert {(span["request_id"], span["turn"]) for span in shown} == {("r", 0), ("r", None), (None, 0)}


def _object(fields: dict[str, str]) -> str:
    return "{" + ", ".join(f'"{key}": {value}' for key, value in fields.items()) + "}"


def test_only_a_folder_with_logs_is_a_run(tmp_path, odd, printed):
    odd(tmp_path / "logs")
    with pytest.raises(LogError):
        open_run(tmp_path / "logs")
    odd(tmp_path / "step_1")
    assert "no" in printed("summary", tmp_path)
