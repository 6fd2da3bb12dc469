"""What the kernel says of a process, in its own format: stopped, frozen, waiting for a disk, gone."""

import pytest

from sglang_instrument.live.outside import views
from sglang_instrument.live.outside.views import Views

PID = 4157
STAT = (
    "4157 (python (v3) x) {state} 1 4157 4157 0 -1 4194560 9310 0 0 0 {cpu} 12 0 0 20 0 5 0 1410 9 7 1844 1"
)
STATUS = "Name:\tpython\nvoluntary_ctxt_switches:\t{switches}\nnonvoluntary_ctxt_switches:\t9\n"


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    """Write what `/proc` and `/sys/fs/cgroup` say of the process; looks are half a second apart."""
    monkeypatch.setattr(views, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(views, "_CGROUPS", tmp_path / "cgroups")
    clock = iter(range(1000))
    monkeypatch.setattr(views.time, "monotonic", lambda: next(clock) / 2)

    def say(state="S", cpu=100, switches=10, cgroup="0::/\n", frozen=None):
        thread = tmp_path / "proc" / str(PID) / "task" / str(PID)
        thread.mkdir(parents=True, exist_ok=True)
        for folder in (thread, thread.parents[1]):
            (folder / "stat").write_text(STAT.format(state=state, cpu=cpu))
        (thread / "status").write_text(STATUS.format(switches=switches))
        (thread.parents[1] / "cgroup").write_text(cgroup)
        for path, text in (frozen or {}).items():
            (tmp_path / "cgroups" / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "cgroups" / path).write_text(text)

    return say


def looked(views_of):
    views_of.look({"worker_0": PID}, {})
    return views_of.of["worker_0"]


def test_a_process_that_waits_for_a_disk_at_both_looks_is_said_to(kernel):
    several = Views()
    kernel(state="D")
    assert looked(several).doing == "disk"
    kernel(state="S")
    assert looked(several).doing == "sleeps"
    kernel(state="D")  # only now
    assert looked(several).doing == "sleeps"
    assert looked(several).doing == "disk"


def test_threads_that_ask_for_the_interpreter_200_times_a_second_show_that_it_is_held(kernel):
    several = Views()
    kernel(state="R", switches=10)
    assert not looked(several).interpreter_is_held
    kernel(state="R", switches=110)
    assert looked(several).interpreter_is_held


@pytest.mark.parametrize(
    ("cgroup", "path", "text"),
    [
        ("0::/pods/a\n", "pods/a/cgroup.events", "populated 1\nfrozen 1\n"),
        ("7:blkio:/\n6:freezer:/docker/b\n0::/\n", "freezer/docker/b/freezer.state", "FROZEN\n"),
    ],
)
def test_a_frozen_control_group_is_read_in_both_versions(kernel, cgroup, path, text):
    several = Views()
    kernel(cgroup=cgroup, frozen={path: text})
    assert looked(several).doing == "frozen"
    several.look({}, {"worker_0": PID})  # silent between two steps
    assert several.of["worker_0"].doing == "frozen"
    kernel(cgroup=cgroup, frozen={path: text.replace("1\n", "0\n").replace("FROZEN", "THAWED")})
    several.look({}, {"worker_0": PID})
    assert several.of == {}


def test_a_process_between_two_steps_is_only_looked_at_for_being_stopped(kernel):
    several = Views()
    kernel(state="R")
    several.look({}, {"worker_0": PID, "gone": 1})
    assert several.of == {}
    kernel(state="T")
    several.look({}, {"worker_0": PID, "gone": 1})
    assert several.of["worker_0"].doing == "stopped"
