"""A link in a run that somebody else made leads no command to the user's own files."""

import subprocess
import sys
from pathlib import Path

import pytest
from awaited import wait_for
from hand_written import request, step_of, write_file
from live_served import samples, served
from live_writer import LiveRun

from sglang_instrument.analysis.long_runs import pieces
from sglang_instrument.analysis.store import homes
from sglang_instrument.cli.main import main
from sglang_instrument.testing import synthetic_run

#: Files of the user whose names could be ours.
USERS = (
    "digest.json",
    "thesis.txt",
    "steps-000000000000.parquet",
    "event_paths-000000000000.parquet",
    "0123456789abcdef01234567",
    "_manifest.json",
    "requests.parquet",
    "spans/run_id=mine/step=1/step_1-worker_0.jsonl.parquet",
    "spans/run_id=synthetic-0/step=1/step_1-worker_0.jsonl.parquet",
    "pieces/thesis.txt",
    "pieces/0123456789abcdef01234567",
    "dataset/steps.parquet",
    "dataset/spans/run_id=mine/step=1/mine.parquet",
    "scalars.jsonl",
    "lock",
)

State = dict[str, tuple[bytes, int, int]]


@pytest.fixture(autouse=True)
def _small_runs_have_a_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(homes, "_WORTHWHILE_BYTES", 1)
    monkeypatch.setattr(pieces, "MOST_FILES", 8)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def users(tmp_path: Path) -> Path:
    folder = tmp_path / "user"
    for name in USERS:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(f"the user's {name}\n".encode())
    return folder


def state_of(folder: Path) -> State:
    """Return the bytes, the inode and the time of each file."""
    files = [path for path in sorted(folder.rglob("*")) if not path.is_dir()]
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_ino, path.stat().st_mtime_ns)
        for path in files
    }


def linked(run: Path, name: str, users: Path) -> None:
    (run / name).parent.mkdir(parents=True, exist_ok=True)
    (run / name).symlink_to(users, target_is_directory=True)


@pytest.mark.parametrize(
    "link",
    [
        ".store",
        ".store/parts",
    ],
)
@pytest.mark.parametrize(
    "words", [("summary",), ("summary", "--by", "day"), ("sql", "select count(*) from spans")], ids=" ".join
)
def test_a_command_with_a_cache_changes_no_file_of_the_user(
    link: str, words: tuple[str, ...], users: Path, tmp_path: Path
) -> None:
    run = synthetic_run(tmp_path / "exp", steps=12, workers=2, requests=3, seed=1)
    linked(run, link, users)
    before = state_of(users)
    for _ in range(2):
        assert main([words[0], str(run), *words[1:]]) == 0
        assert state_of(users) == before


@pytest.mark.parametrize("name", ["index.json", "lock"])
def test_a_link_in_place_of_a_file_of_a_cache_is_not_written_through(
    name: str, users: Path, tmp_path: Path
) -> None:
    run = synthetic_run(tmp_path / "exp", steps=3, workers=2, requests=3, seed=1)
    linked(run, f".store/{name}", users / "thesis.txt")
    before = state_of(users)
    assert main(["summary", str(run)]) == 0
    assert main(["sql", str(run), "select count(*) from steps"]) == 0
    assert state_of(users) == before


@pytest.mark.parametrize("links", ["folder", "files"])
def test_watch_that_listens_changes_no_file_of_the_user(links: str, users: Path, tmp_path: Path) -> None:
    run = LiveRun(tmp_path / "exp")
    run.open(1, 0).request("a", time_sec=1, duration_sec=1, tokens=100)
    with served(run.folder) as (server, _):
        name = server.counters._name
        (users / name).write_bytes(b"the user's")
        linked(run.folder, *(("live", users) if links == "folder" else (f"live/{name}", users / name)))
        before = state_of(users)
        samples(server)
        samples(server)
        assert state_of(users) == before


@pytest.mark.parametrize("link", ["live", "live/lock", "live/scalars.jsonl"])
def test_the_follower_of_a_training_changes_no_file_of_the_user_and_says_why(
    link: str, users: Path, tmp_path: Path
) -> None:
    write_file(tmp_path / "exp", 1, 0, step_of(request("a", 0, 4)))
    linked(tmp_path / "exp", link, users / "new" if "/" in link else users)
    before = state_of(users)
    said = tmp_path / "said"
    with said.open("wb") as stderr:
        command = [sys.executable, "-m", "sglang_instrument.live", str(tmp_path / "exp")]
        process = subprocess.Popen(command, stderr=stderr)
        wait_for(lambda: said.read_text().endswith("\n") or state_of(users) != before, "nothing was said")
        process.terminate()
        process.wait()
    assert state_of(users) == before
    assert "sglang_instrument.live: " in said.read_text()
