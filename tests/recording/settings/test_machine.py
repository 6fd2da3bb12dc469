"""The machine is described from files alone; a commit is that of the checkout around the program."""

import os
import subprocess

from sglang_instrument.recording.settings import machine


def git(folder, *words):
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.com")
    subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)
    return folder


def head_of(folder):
    text = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=folder, check=True, capture_output=True, text=True
    )
    return text.stdout.strip()


def test_cores_and_memory_are_those_of_this_process():
    described = machine.described()
    assert 0 < described["cores"] <= os.cpu_count()
    assert described["memory_bytes"] > 2**20
    assert None not in described.values()


def test_the_commit_is_found_from_below_in_worktrees_and_packed(tmp_path):
    checkout = tmp_path / "trainer"
    (checkout / "scripts").mkdir(parents=True)
    git(checkout, "init", "--quiet")
    git(checkout, "commit", "--allow-empty", "--quiet", "--message", "first")
    assert machine.commit_of(checkout / "scripts") == head_of(checkout)
    git(checkout, "pack-refs", "--all")
    assert machine.commit_of(checkout) == head_of(checkout)
    git(checkout, "worktree", "add", "--quiet", str(tmp_path / "other"))
    git(tmp_path / "other", "commit", "--allow-empty", "--quiet", "--message", "second")
    assert machine.commit_of(tmp_path / "other") == head_of(tmp_path / "other") != head_of(checkout)
    git(checkout, "checkout", "--quiet", "--detach")
    assert machine.commit_of(checkout) == head_of(checkout)


def test_no_commit_is_no_error(tmp_path):
    assert machine.commit_of(tmp_path) is None
    (tmp_path / ".git").write_text("gitdir: nowhere")
    assert machine.commit_of(tmp_path) is None


def test_a_folder_that_may_not_be_entered_or_is_gone_is_no_error(tmp_path, monkeypatch):
    def forbidden(path):
        raise PermissionError(13, "not for you", path)

    monkeypatch.setattr(machine.Path, "is_file", forbidden)
    monkeypatch.setattr(machine.Path, "cwd", lambda: forbidden("."))
    monkeypatch.setattr(machine.sys, "argv", ["-c"])
    machine.described.cache_clear()
    assert "cores" in machine.described()
    machine.described.cache_clear()
