"""The machine is described from files alone; a commit is that of the checkout around the program."""

import os
import subprocess
import sys

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


def test_a_current_folder_that_was_deleted_is_no_error(tmp_path):
    code = (
        "import os, sys; os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone');"
        "from sglang_instrument.recording.settings import machine; print(sorted(machine.described()))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert "cores" in done.stdout, done.stderr
    assert "commit" not in done.stdout
