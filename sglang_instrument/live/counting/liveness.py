"""Tell which processes of a run are alive, as far as this host can tell."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sglang_instrument.analysis.reading.liveness import is_alive
from sglang_instrument.analysis.reading.processes import read_process
from sglang_instrument.errors import LogError


@dataclass
class Liveness:
    """The processes of a run, by the names of their files.

    Attributes:
        folder: The run's folder.
        alive: By name: whether it is alive; None if it runs on another host.
        pids: By name: the id of each that is alive on this host.
        killed: The programs of this host that are gone and did not close their logs. Those that Ray or
            another program started are not among them: these are ended by a kill as a rule.
    """

    folder: Path
    alive: dict[str, bool | None] = field(default_factory=dict)
    pids: dict[str, int] = field(default_factory=dict)
    killed: set[str] = field(default_factory=set)
    _facts: dict[str, tuple[int, dict[str, Any]]] = field(default_factory=dict)

    def look(self, runs: Collection[str]) -> None:
        """Look at the processes of these runs again."""
        self.alive, self.pids, self.killed = {}, {}, set()
        try:
            paths = sorted((self.folder / "processes").glob("*.json"))
        except OSError:
            return
        for path in paths:
            facts = self._read(path)
            if facts is not None and facts.get("run_id") in runs:
                alive = self.alive[path.stem] = is_alive(self.folder, path.stem, facts)
                if alive:
                    self.pids[path.stem] = facts["pid"]
                elif alive is False and _is_program(facts) and self._is_unclosed(path):
                    self.killed.add(path.stem)

    def _is_unclosed(self, path: Path) -> bool:
        """Return whether a process that is gone did not close its log; it may have done so just now."""
        facts = self._read(path)
        return facts is not None and facts["log_closed"] is False

    def _read(self, path: Path) -> dict[str, Any] | None:
        """Return what a process says of itself; a thousand of them change rarely."""
        try:
            modified = path.stat().st_mtime_ns
            known = self._facts.get(path.stem)
            if known is None or known[0] != modified:
                facts = read_process(path)
                known = self._facts[path.stem] = modified, {key: facts.get(key) for key in _NEEDED}
        except (OSError, LogError):  # gone, or being written
            return None
        return known[1]


_NEEDED = ("run_id", "host", "pid", "log_closed", "driver", "actor")


def _is_program(facts: Mapping[str, Any]) -> bool:
    """Return whether no other process of the run started this one."""
    return facts["actor"] is None and facts["driver"] == f"{facts['host']}:{facts['pid']}"
