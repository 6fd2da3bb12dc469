"""What is written and deleted below a folder is below it; an old file stays until the new one is whole."""

import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from small_disks import small_disk

from sglang_instrument.safe_files.folder import SafeFolder, is_draft

CHANGES: dict[str, Callable[[SafeFolder], object]] = {
    "make": lambda folder: folder.make(),
    "write": lambda folder: folder.write("mine", b"new"),
    "changing": lambda folder: folder.changing("mine").__enter__(),
    "locked": lambda folder: folder.locked("mine").__enter__(),
    "delete": lambda folder: folder.delete("mine"),
    "set_mtime": lambda folder: folder.set_mtime("mine", 0),
    "rename_folder": lambda folder: folder.rename_folder("below", "other"),
    "link": lambda folder: folder.link("mine", folder, "mine"),
}


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def write_half(folder: SafeFolder) -> None:
    with folder.writing("file") as file:
        file.write(b"half")
        raise KeyboardInterrupt


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A folder of the user."""
    folder = tmp_path / "elsewhere"
    (folder / "below").mkdir(parents=True)
    (folder / "mine").write_bytes(b"the user's")
    return folder


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("depth", [1, 2])
def test_a_link_in_place_of_a_folder_is_refused(
    change: str, depth: int, elsewhere: Path, tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".cache").symlink_to(elsewhere if depth == 1 else elsewhere.parent)
    folder = SafeFolder(tmp_path / "run", (".cache", *(["elsewhere"] if depth == 2 else [])))
    before = {path.name: path.lstat() for path in elsewhere.iterdir()}
    with pytest.raises(NotADirectoryError, match="a link or a file is in place of a folder"):
        CHANGES[change](folder)
    assert {path.name: path.lstat() for path in elsewhere.iterdir()} == before


def test_what_may_fail_silently_does_not_reach_through_a_link(elsewhere: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".cache").symlink_to(elsewhere)
    folder = SafeFolder(tmp_path / "run", (".cache",))
    assert folder.names() == []
    assert not folder.has_file("mine")
    folder.delete_those(lambda name: True)
    folder.delete_drafts(at_once=True)
    folder.delete_folder("below")
    SafeFolder(tmp_path / "run").delete_folder(".cache")
    assert names_in(elsewhere) == ["below", "mine"]


def test_a_link_in_place_of_a_file_is_not_followed(elsewhere: Path, tmp_path: Path) -> None:
    folder = SafeFolder(tmp_path)
    for name in ("written", "changed", "deleted", "deleted with links"):
        (tmp_path / name).symlink_to(elsewhere / "mine")
    folder.write("written", b"new")
    assert not (tmp_path / "written").is_symlink()
    with pytest.raises(OSError, match="symbolic links"), folder.changing("changed"):
        pass
    with pytest.raises(OSError, match="no regular file"):
        folder.delete("deleted")
    folder.delete("deleted with links", links=True)
    folder.delete_those(lambda name: True)
    assert (tmp_path / "deleted").is_symlink()
    assert (elsewhere / "mine").read_bytes() == b"the user's"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../elsewhere", "/etc/passwd", "a\0b"])
def test_a_name_that_leads_elsewhere_is_refused(name: str, tmp_path: Path) -> None:
    folder = SafeFolder(tmp_path / "run")
    folder.make()
    with pytest.raises(OSError, match="no name of a file"):
        folder.write(name, b"")
    with pytest.raises(OSError, match="no name of a file"):
        SafeFolder(tmp_path / "run", (name,)).make()


def test_missing_folders_are_made_below_a_root_that_is_there(tmp_path: Path) -> None:
    (SafeFolder(tmp_path) / "a/b").write("file", b"x")
    assert (tmp_path / "a/b/file").read_bytes() == b"x"
    with pytest.raises(FileNotFoundError):
        SafeFolder(tmp_path / "vanished", ("live",)).write("file", b"x")
    SafeFolder(tmp_path / "new", ("live",)).make()
    assert (tmp_path / "new/live").is_dir()


def test_after_an_error_the_old_file_stays_and_no_draft_is_left(tmp_path: Path) -> None:
    folder = SafeFolder(tmp_path)
    folder.write("file", b"old")
    with pytest.raises(KeyboardInterrupt):
        write_half(folder)
    assert names_in(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"


def test_on_a_full_disk_the_old_file_stays(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", "64k") as disk:
        folder = SafeFolder(disk)
        folder.write("file", b"old")
        with pytest.raises(OSError, match="No space left"):
            folder.write("file", bytes(2**20))
        assert names_in(disk) == ["file"]
        assert (disk / "file").read_bytes() == b"old"


def test_a_new_file_has_the_rights_of_the_one_that_it_replaces(tmp_path: Path) -> None:
    folder = SafeFolder(tmp_path)
    folder.write("file", b"old")
    (tmp_path / "file").chmod(0o600)
    folder.write("file", b"new", sync=True)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600


def test_drafts_of_killed_processes_go_and_those_of_others_stay(tmp_path: Path) -> None:
    folder = SafeFolder(tmp_path)
    old, new, user = (f".sglang_instrument-{16 * digit}" for digit in "123")
    old, new = f"{old}.draft", f"{new}.draft"
    for name in (old, new, user):
        (tmp_path / name).touch()
    for name in (old, user):
        os.utime(tmp_path / name, (time.time() - 7200,) * 2)
    folder.delete_drafts()
    assert folder.names() == sorted([new, user])
    folder.delete_drafts(at_once=True)
    assert folder.names() == [user]
    with folder.writing("file"):
        assert sum(map(is_draft, folder.names())) == 1


def test_one_process_at_a_time_holds_a_lock(tmp_path: Path) -> None:
    folder = SafeFolder(tmp_path)
    with folder.locked("lock"):
        with pytest.raises(BlockingIOError), folder.locked("lock"):
            pass
        assert (tmp_path / "lock").exists()
    with folder.locked("lock"):
        pass


def test_appended_bytes_come_after_those_of_another_writer(tmp_path: Path) -> None:
    folder = SafeFolder(tmp_path)
    with folder.changing("log", append=True) as first, folder.changing("log", append=True) as second:
        first.write(b"1\n")
        second.write(b"2\n")
        first.write(b"3\n")
    assert (tmp_path / "log").read_bytes() == b"1\n2\n3\n"
