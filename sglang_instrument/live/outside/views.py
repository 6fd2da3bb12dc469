"""Look at a process from outside: does it run, is it stopped, does it wait for a disk or its interpreter?

Everything is read from `/proc`. A thread of CPython that waits for the interpreter's lock wakes up every 5 ms
to ask for it: 200 voluntary context switches a second at hardly any CPU time.
"""

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal, NamedTuple

from sglang_instrument.live.outside.stacks import stack_of
from sglang_instrument.processors import processors

Doing = Literal["runs", "sleeps", "stopped", "frozen", "disk"]

_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")
_TICKS_PER_SEC: Final = 100.0  # of utime and stime; Linux fixes it for user space
# Of a thread that waits for the interpreter's lock: a busy host delays wake-ups, and no waiter has more.
_LEAST_PER_SEC: Final = 70.0
_LEAST_WHEN_BUSY: Final = 30.0
_MOST_PER_SEC: Final = 260.0
_WAITERS_CPU: Final = 0.1  # at most this share of a core
_LEAST_SEC: Final = 0.3  # between two looks that are compared
_STOPPED: Final = frozenset({"T", "t"})
_WORDS: Final[dict[Doing, str]] = {
    "runs": "it runs on the CPU",
    "sleeps": "it sleeps",
    "stopped": "it is stopped",
    "frozen": "it is frozen",
    "disk": "it waits for a disk",
}


@dataclass(frozen=True)
class View:
    """What a process does, seen from outside.

    Attributes:
        pid: Its id.
        doing: What `/proc/PID/stat` says.
        cpu_share: The cores that it used between two looks.
        interpreter_is_held: Whether its threads wait for the lock of its interpreter.
        stack: Where it stands, the innermost frame last, if `py-spy` told.
    """

    pid: int
    doing: Doing
    cpu_share: float = 0.0
    interpreter_is_held: bool = False
    stack: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """What it does, in words."""
        return _WORDS[self.doing]


class _ThreadState(NamedTuple):
    cpu_sec: float
    switches: int


@dataclass(frozen=True)
class _Look:
    """What `/proc` said at a monotonic time."""

    looked_sec: float
    state: str
    cpu_sec: float
    is_frozen: bool
    threads: Mapping[int, _ThreadState]


@dataclass
class Views:
    """Compares looks at processes.

    Attributes:
        with_stacks: Whether to ask `py-spy` where they stand, once for each silence.
        of: What is known of each process that is looked at, by the name of its files.
    """

    with_stacks: bool = False
    of: dict[str, View] = field(default_factory=dict)
    _stacks: dict[int, tuple[str, ...]] = field(default_factory=dict)
    _looks: dict[str, tuple[int, _Look]] = field(default_factory=dict)

    def look(self, suspects: Mapping[str, int], idle: Mapping[str, int]) -> None:
        """Look at these processes, and forget all others.

        Args:
            suspects: The id of each process that is silent in a step, by the name of its files.
            idle: The same of those that are silent in none: only whether they are stopped matters.
        """
        self.of = {name: view for name, view in self.of.items() if name in suspects}
        self._looks = {name: look for name, look in self._looks.items() if name in suspects}
        for name, pid in suspects.items():
            now = _look_at(pid)
            before = self._looks.get(name)
            if now is None:
                self.of.pop(name, None)
            elif before is None or before[0] != pid:
                self._looks[name] = pid, now
                self.of[name] = View(pid, _doing(now, now))
            elif now.looked_sec - before[1].looked_sec >= _LEAST_SEC:
                self._looks[name] = pid, now
                self.of[name] = _compared(pid, before[1], now)
        if self.with_stacks:
            self._add_stacks()
        self.of |= {name: View(pid, doing) for name, pid in idle.items() if (doing := _stopped(pid))}

    def _add_stacks(self) -> None:
        pids = {view.pid for view in self.of.values()}
        self._stacks = {pid: self._stacks[pid] if pid in self._stacks else stack_of(pid) for pid in pids}
        self.of = {name: replace(view, stack=self._stacks[view.pid]) for name, view in self.of.items()}


def _compared(pid: int, before: _Look, now: _Look) -> View:
    lasted, least = now.looked_sec - before.looked_sec, _least_per_sec()
    is_held = any(
        least <= (thread.switches - before.threads[number].switches) / lasted <= _MOST_PER_SEC
        and (thread.cpu_sec - before.threads[number].cpu_sec) / lasted <= _WAITERS_CPU
        for number, thread in now.threads.items()
        if number in before.threads
    )
    return View(pid, _doing(before, now), max(0.0, (now.cpu_sec - before.cpu_sec) / lasted), is_held)


def _least_per_sec() -> float:
    """Return how often a thread that waits for the lock wakes up at least, on a host as busy as this one."""
    busy = os.getloadavg()[0] / processors()
    return max(_LEAST_WHEN_BUSY, _LEAST_PER_SEC / max(1.0, busy))


def _doing(before: _Look, now: _Look) -> Doing:
    if now.state in _STOPPED:
        return "stopped"
    if now.is_frozen:
        return "frozen"
    if now.state == before.state == "D":
        return "disk"
    return "runs" if now.state == "R" else "sleeps"


def _look_at(pid: int) -> _Look | None:
    """Return what `/proc` says of a process; None if it is gone, or `/proc` does not tell."""
    try:
        state, cpu_sec = _stat(_PROC / f"{pid}/stat")
    except (OSError, ValueError, IndexError):
        return None
    return _Look(time.monotonic(), state, cpu_sec, _is_frozen(pid), dict(_threads(pid)))


def _stopped(pid: int) -> Doing | None:
    """Return whether a process is stopped or frozen, by little more than one read."""
    try:
        state = _stat(_PROC / f"{pid}/stat")[0]
    except (OSError, ValueError, IndexError):
        return None
    if state in _STOPPED:
        return "stopped"
    return "frozen" if _is_frozen(pid) else None


def _stat(path: Path) -> tuple[str, float]:
    """Return the state of a process or thread, and its CPU seconds."""
    fields = path.read_bytes().rpartition(b")")[2].split()
    return fields[0].decode(), (int(fields[11]) + int(fields[12])) / _TICKS_PER_SEC


def _threads(pid: int) -> Iterator[tuple[int, _ThreadState]]:
    folder = _PROC / f"{pid}/task"
    try:
        names = [path.name for path in folder.iterdir()]
    except OSError:
        return
    for name in names:
        try:
            cpu_sec = _stat(folder / name / "stat")[1]
            status = (folder / name / "status").read_bytes()
            yield (
                int(name),
                _ThreadState(cpu_sec, int(status.partition(b"\nvoluntary_ctxt_switches:")[2].split()[0])),
            )
        except (OSError, ValueError, IndexError):  # the thread has ended
            continue


def _is_frozen(pid: int) -> bool:
    """Return whether the control group of a process is frozen, as `docker pause` does it."""
    try:
        lines = (_PROC / f"{pid}/cgroup").read_text().splitlines()
    except (OSError, ValueError):
        return False
    return any(_is_frozen_by(line) for line in lines)


def _is_frozen_by(line: str) -> bool:
    """Return whether a control group is frozen, by a line of `/proc/PID/cgroup`, as "6:freezer:/docker/a"."""
    try:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            return "frozen 1" in (_CGROUPS / path.lstrip("/") / "cgroup.events").read_text()
        if "freezer" in controllers.split(","):
            state = (_CGROUPS / "freezer" / path.lstrip("/") / "freezer.state").read_text()
            return state.startswith(("FROZEN", "FREEZING"))
    except (OSError, ValueError):  # a root group has no state
        return False
    return False
