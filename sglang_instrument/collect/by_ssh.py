"""Reach nodes by rsync over ssh, which need nothing of ours there."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from sglang_instrument.collect.nodes import Node
from sglang_instrument.collect.staging import StagedNode, Staging
from sglang_instrument.errors import InstrumentError

_AT_ONCE: Final = 16  # hosts
_SSH: Final = "ssh -o BatchMode=yes -o ConnectTimeout=20 -o ServerAliveInterval=15 -o ServerAliveCountMax=4"
_VANISHED: Final = 24  # rsync's code: a file was deleted or renamed while it copied


class SshNodes:
    """Hosts that rsync reaches.

    Args:
        hosts: As ssh takes them: node1, user@node1.
        run: The run's folder on each of them.
        staging: Where rsync puts their files.

    Raises:
        InstrumentError: There is no rsync on this machine.
    """

    def __init__(self, hosts: Sequence[str], run: str, staging: Staging) -> None:
        rsync = shutil.which("rsync")
        if rsync is None:
            raise InstrumentError("--ssh needs rsync, here and on the nodes; install it, or use --ray")
        self._rsync = rsync
        self._hosts = hosts
        self._run = run
        self._staging = staging
        self._errors: dict[str, str] = {}
        self._nodes: dict[str, Node] | None = None

    def nodes(self) -> dict[str, Node]:
        """Copy the new bytes of all hosts, once; a host that failed may have sent a part."""
        if self._nodes is None:
            with ThreadPoolExecutor(_AT_ONCE) as threads:
                list(threads.map(self._copy, self._hosts))
            self._nodes = {host: StagedNode(host) for host in self._hosts}
        return self._nodes

    def lost(self) -> dict[str, str]:
        """Return by host why rsync failed."""
        return self._errors

    def _copy(self, host: str) -> None:
        # -s: the path is no word for the remote shell. Hidden files are locks, caches and files half written.
        source, target = f"{host}:{self._run.rstrip('/')}/", f"{self._staging.of(host).path}/"
        done = subprocess.run(  # noqa: S603 - a host is no option: see `node_lists`
            [self._rsync, "-rtzs", "--include=.pruned", "--exclude=.*", "--timeout=120", source, target],
            env={"RSYNC_RSH": _SSH, **os.environ},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        if done.returncode not in (0, _VANISHED):
            said = done.stderr.strip().splitlines() or [f"rsync ended with {done.returncode}"]
            self._errors[host] = said[0]
