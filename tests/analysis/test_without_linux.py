"""Copied logs are read where Python lacks what only Linux has, as on a Mac."""

import subprocess
import sys
from pathlib import Path

from sglang_instrument.testing import SlowEngine, synthetic_run

#: What CPython's documentation marks "Availability: Linux", of the modules that a Mac has, too.
ONLY_ON_LINUX = """
import fcntl, os, select, signal, socket, sys, time, resource

ONLY = {
    os: ("CLD_", "EFD_", "GRND_", "MFD_", "O_DIRECT$", "O_LARGEFILE", "O_NOATIME", "O_PATH", "O_RSYNC",
         "O_TMPFILE", "PIDFD_", "POSIX_FADV", "RWF_", "SCHED_BATCH", "SCHED_IDLE", "SCHED_RESET", "SPLICE_",
         "TFD_", "XATTR_", "copy_file_range", "eventfd", "fdatasync", "getrandom", "getresgid", "getresuid",
         "getxattr", "listxattr", "memfd_create", "pidfd_open", "pipe2", "posix_fadvise", "posix_fallocate",
         "removexattr", "sched_getaffinity", "sched_getparam", "sched_getscheduler", "sched_param",
         "sched_rr", "sched_setaffinity", "sched_setparam", "sched_setscheduler", "setns", "setresgid",
         "setresuid", "setxattr", "splice", "timerfd", "unshare"),
    fcntl: ("F_ADD_SEALS", "F_GETPIPE_SZ", "F_GET_SEALS", "F_NOTIFY", "F_OFD_", "F_SEAL", "F_SETPIPE_SZ"),
    select: ("EPOLL", "epoll"),
    signal: ("SIGPWR", "SIGRTM", "SIGSTKFLT", "pidfd_send_signal", "sigtimedwait", "sigwaitinfo"),
    socket: ("AF_NETLINK", "AF_PACKET", "AF_ALG", "AF_VSOCK", "SO_PEERCRED", "SOCK_CLOEXEC", "SOCK_NONBLOCK"),
    time: ("CLOCK_BOOTTIME", "CLOCK_TAI", "pthread_getcpuclockid"),
    resource: ("RLIMIT_MSGQUEUE", "RLIMIT_NICE", "RLIMIT_RT", "RLIMIT_SIG", "RUSAGE_THREAD", "prlimit"),
}
for module, names in ONLY.items():
    for name in list(vars(module)):
        if any(name == known[:-1] if known.endswith("$") else name.startswith(known) for known in names):
            delattr(module, name)

def hide(event, arguments):
    path = arguments[0] if event in ("open", "os.listdir", "os.scandir") else None
    if isinstance(path, (str, bytes, os.PathLike)) and os.fsdecode(path).startswith(("/proc", "/sys")):
        raise FileNotFoundError(2, "hidden from this test", os.fsdecode(path))

sys.addaudithook(hide)
"""
IMPORT_ALL = """
import importlib, pkgutil
import sglang_instrument
READING = ("analysis", "report", "traces", "live", "collect", "cli")
for half in READING:
    package = importlib.import_module(f"sglang_instrument.{half}")
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
            print(module.name)
"""
ANSWER = """
from sglang_instrument.cli.main import main
logs, page = sys.argv[1:]
from sglang_instrument.live.children import yield_to_training
for command in (["summary", logs, "--step", "2"], ["requests", logs], ["workers", logs], ["events", logs],
                ["check", logs], ["report", logs, "-o", page], ["watch", logs, "--once"]):
    code = main(command)
    assert code == 0, (command, code)
yield_to_training()  # at last: among busy processes, one that yields gets minutes late what takes seconds
"""


def run_without_linux(code: str, *arguments: object) -> str:
    """Return what code prints in a process without what only Linux has."""
    command = [sys.executable, "-c", ONLY_ON_LINUX + code, *map(str, arguments)]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_every_module_that_reads_can_be_imported() -> None:
    imported = run_without_linux(IMPORT_ALL).splitlines()
    assert len(imported) > 300
    assert "sglang_instrument.analysis.questions" in imported


def test_a_copied_log_is_answered_with_its_cause_and_a_report(tmp_path: Path) -> None:
    slow = SlowEngine(2, 1, factor=6.0)
    logs = synthetic_run(tmp_path / "exp", steps=4, workers=2, requests=16, causes=[slow])
    answers = run_without_linux(ANSWER, logs, tmp_path / "report.html")
    assert "step 2: worker 1" in answers
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
