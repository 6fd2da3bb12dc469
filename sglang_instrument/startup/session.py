"""One session of instrumentation: settings, recorder and patches, from start to stop."""

import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sglang_instrument import __version__, launchers, native
from sglang_instrument.addresses import without_user
from sglang_instrument.config import DEFAULT_EXPERIMENT, Config
from sglang_instrument.errors import ConfigError
from sglang_instrument.patching.decorating.rebuilt import name_rebuilt
from sglang_instrument.patching.decorating.rewriting import ask_for_tables, requests_of
from sglang_instrument.patching.places.versions import installed_version
from sglang_instrument.patching.probes.contract import ProbeContract
from sglang_instrument.patching.probes.probe import probes_for
from sglang_instrument.patching.probes.tracker_probe import feed_trackers
from sglang_instrument.patching.rewriting.patcher import Patcher
from sglang_instrument.patching.rewriting.sites import Site
from sglang_instrument.patching.tables.modes import variable_against
from sglang_instrument.patching.tables.reading import load_tables
from sglang_instrument.patching.tables.regions import PatchTable
from sglang_instrument.patching.tables.request_header import use_request_header
from sglang_instrument.recording.keep.clock import HOST
from sglang_instrument.recording.keep.presence import Presence
from sglang_instrument.recording.measure import identity, open_spans, ray_actor, scopes, spans
from sglang_instrument.recording.recorder import LONGEST_WAIT_SEC, Recorder
from sglang_instrument.recording.safety import notices
from sglang_instrument.recording.settings import configuration, machine
from sglang_instrument.startup import run_ids
from sglang_instrument.startup.coverage import coverage_of, packages_outside
from sglang_instrument.startup.hand_over import HandOver
from sglang_instrument.startup.ray_workers import RayInit
from sglang_instrument.startup.scalars import Scalars

if TYPE_CHECKING:
    from sglang_instrument.profilers.in_training.recording_hooks import Scheduled
    from sglang_instrument.startup.follower import FollowerProcess

_ADDRESS: Final = ("--host", "--port")
_FRAMEWORKS: Final = ("sglang", "torch", "ray", "vllm")  # below every trainer


class Session:
    """Everything that `install()` sets up in this process, and how to undo it.

    Raises:
        TableError: One of the user's patch tables cannot be read.
    """

    def __init__(self, config: Config) -> None:
        self.config, self._folder = config, config.folder
        use_request_header(config.request_header)
        tables = load_tables(config.trainers or None, [Path(folder) for folder in config.patches])
        tables = [table for table in tables if table.is_wanted(config.engine_detail, config.scalars)]
        self._tables = [table.for_all_ranks() for table in tables] if config.all_ranks else tables
        self._versions = versions_of(frozenset(table.package for table in tables))
        regions = [region for table in self._tables for patch in table.patches for region in patch.regions]
        self._started_us = time.time_ns() // 1000
        self._launch = launchers.launch_of(os.environ, HOST)
        self.recorder = Recorder(config, self.describe, self._launch)
        self._presence: Presence | None = None
        self.patcher = Patcher(
            self._tables,
            make_probe=probes_for(regions),
            wrap=_wrap_target,
            decorated=requests_of,
            patched=self._patched,
        )
        self._schedule = _schedule_for(config)
        self.scalars = Scalars(config.folder, config.run_id) if config.scalars else None
        self._follower = _follower_for(config)
        self.driver = os.environ.get(run_ids.DRIVER) or f"{HOST}:{os.getpid()}"
        self._ray = RayInit(self.child_environment)
        self._hand_over = HandOver()
        changed = (*self.child_environment(), identity.SERVER)
        self._patches: tuple[object, list[dict[str, Any]]] = (None, [])  # sites, and what is said of them
        self._environment_before = {name: os.environ.get(name) for name in changed}

    def start(self) -> None:
        """Record, patch targets that are imported now or later, and pass the settings on to children."""
        os.environ.update(self.child_environment())
        self.recorder.start()
        ask_for_tables(self.patcher.requests_of)
        self.patcher.install()
        scopes.before_steps(self.patcher.find_overrides)
        self._ray.start()
        self._hand_over.start()
        if self._schedule is not None:
            self._schedule.start()
        feed_trackers(self.scalars)
        if self.scalars is not None and self._follower is not None:
            self._follower.start()
            self.scalars.start()  # elsewhere, the tracker's probe starts it: few processes have a tracker

    def stop(self) -> None:
        """Undo everything and write all records; a step that fails does not stop the others."""
        ends = time.monotonic() + LONGEST_WAIT_SEC
        if self._presence is not None:
            self._presence.cancel()
        self._stop_scalars()
        if self._schedule is not None:
            self._schedule.stop()  # awaited below: all waits together stay within one limit
        ask_for_tables(None)
        scopes.before_steps(None)
        try:
            for reason in (self._ray.stop(), *self._hand_over.stop(), *self.patcher.uninstall()):
                if reason is not None:
                    notices.notice(f"restore: {reason}", reason)
        finally:
            try:
                self.recorder.stop()
            finally:
                configuration.forget_settings()
                self._restore_environment()
                self._await_threads(ends)

    def _stop_scalars(self) -> None:
        feed_trackers(None)
        if self.scalars is not None:
            self.scalars.stop()
        if self._follower is not None:
            self._follower.stop()

    def child_environment(self) -> dict[str, str]:
        """Return the environment variables by which a child or a Ray worker joins this run."""
        return {
            run_ids.SWITCH: "1",
            run_ids.DRIVER: self.driver,
            run_ids.PACKAGES: ",".join(sorted(packages_outside(self._tables))),
            **({launchers.LAUNCHER: self._launch["launcher"]} if self._launch else {}),
            **self.config.environment(),
        }

    def _restore_environment(self) -> None:
        for name, value in self._environment_before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    def prepare_fork(self) -> None:
        """Build what a forked child needs; it then runs and touches less, so less of its memory is copied."""
        self.recorder.prepare_fork()

    def restart_in_child(self) -> None:
        """Continue in a forked child, without files, locks and threads of the parent."""
        self._presence = None  # the parent's
        if self._schedule is not None:
            self._schedule.restart_in_child()
        if self.scalars is not None:
            self.scalars = Scalars(self._folder, self.config.run_id)
            feed_trackers(self.scalars)
        self._follower = None  # the parent's
        self.patcher.restart_in_child()
        self.recorder.restart_in_child()
        self._hand_over.restart_in_child()

    def _patched(self) -> None:
        if self._presence is None:
            self._presence = Presence(self._folder, self.describe, self.recorder.is_described_in_turn)
        self._presence.tell()

    def end(self) -> None:
        """Write all records, because the process ends; the patches stay."""
        ends = time.monotonic() + LONGEST_WAIT_SEC
        self._hand_over.end()
        if self._presence is not None:
            self._presence.end(0)
        if self._schedule is not None:
            self._schedule.stop()
        if self.scalars is not None:
            self.scalars.stop()
        self.recorder.end()
        self._await_threads(ends)

    def _await_threads(self, ends: float) -> None:
        if self._presence is not None:
            self._presence.end(max(0.0, ends - time.monotonic()))
        if self.scalars is not None:
            self.scalars.join(max(0.0, ends - time.monotonic()))
        if self._schedule is not None:
            self._schedule.stop(max(0.0, ends - time.monotonic()))

    def status(self) -> dict[str, Any]:
        """Return what `sglang_instrument.status()` returns while installed."""
        folder = str(self.config.folder)
        open_spans.drop_interrupted()
        name_rebuilt()
        facts = {"installed": True, "folder": folder, "open_spans": len(spans.OPEN), **self.describe()}
        return {**facts, "patches": [_described(table, site) for table, site in self._all_sites()]}

    def describe(self) -> dict[str, Any]:
        """Return the description of this process: versions, settings, patches, counts, notices."""
        return {
            "run_id": self.config.run_id,
            "host": HOST,
            "pid": os.getpid(),
            "started_us": self._started_us,
            "driver": self.driver,
            **self._launch,
            "actor": ray_actor.actor_name(),
            "command": program(sys.orig_argv),
            "python": platform.python_version(),
            "versions": self._versions,
            "native": native.ON,
            "native_reason": native.REASON,
            "settings": {name: without_user(text) for name, text in self.config.environment().items()},
            "machine": machine.described(),
            **configuration.described_configuration(),
            "records": self.recorder.counts(),
            "patches": self._answers(),
            "notices": notices.noticed(),
        }

    def _answers(self) -> list[dict[str, Any]]:
        """Return the patches that are expected and imported: the others would fill most of the file."""
        sites, answers = self._patches
        if sites is not self.patcher.results():
            sites = self.patcher.results()
            answers = [_described(table, site) for table, site in self._all_sites() if _is_answer(site)]
            self._patches = sites, answers
        return answers

    def announcement(self) -> str:
        """Return the line that `install()` prints."""
        sites = self._sites_by_table()
        parts = [text for table in self._tables if (text := coverage_of(table, sites.get(table.name, [])))]
        coverage = "; ".join(parts) or "no known trainer is installed"
        unnamed = self.config.experiment == DEFAULT_EXPERIMENT
        shared = "; the experiment has no name (EXPERIMENT_NAME): all such runs share this folder"
        return (
            f"sglang_instrument {__version__}: {coverage} -> {self.config.folder}{shared if unnamed else ''}"
        )

    def _all_sites(self) -> Iterator[tuple[PatchTable, Site]]:
        sites = self._sites_by_table()
        return ((table, site) for table in self._tables for site in sites.get(table.name, []))

    def _sites_by_table(self) -> dict[str, list[Site]]:
        sites_by_table: dict[str, list[Site]] = {}
        for site in self.patcher.results():
            sites_by_table.setdefault(site.region.origin.table, []).append(site)
        return sites_by_table


def _wrap_target(function: Callable[..., Any], probe: ProbeContract) -> Callable[..., Any]:
    """Wrap a target without source; imported only for such a target: the wrappers import wrapt."""
    from sglang_instrument.patching.decorating.wrappers import wrap_target

    return wrap_target(function, probe)


def _schedule_for(config: Config) -> "Scheduled | None":
    """Return the schedule of the steps to profile, if any; without one, import no profiler code."""
    if not (config.profile_steps or config.profile_when):
        return None
    from sglang_instrument.profilers.in_training.recording_hooks import Scheduled

    try:
        return Scheduled(config)
    except ConfigError as error:  # from an environment variable: `install()` has checked its keywords
        notices.notice(f"setting: {error}", f"{error}; nothing is profiled")
        return None


def _follower_for(config: Config) -> "FollowerProcess | None":
    """Return the follower that this process starts, if it is the driver; else import no subprocess."""
    if not config.scalars or run_ids.DRIVER in os.environ or launchers.rank_of(os.environ):
        return None
    from sglang_instrument.startup.follower import FollowerProcess

    return FollowerProcess(config.folder, config.run_id, config.follower_priority)


def program(words: list[str]) -> list[str]:
    """Return the program and the listening address of a command line; other arguments may hold secrets."""
    named = next(
        (position for position, word in enumerate(words[1:], 1) if not word.startswith("-")), len(words)
    )
    program_words = ["-c"] if "-c" in words[1:named] else words[1 : named + 1]
    return list(map(without_user, [words[0], *program_words, *_address(words[named + 1 :])])) if words else []


def _address(words: list[str]) -> list[str]:
    """Return the words that name a server's address: `serve`, `--port 30000`, `--port=30000`."""
    address_words: list[str] = []
    for word, value in zip(words, [*words[1:], ""], strict=False):
        if word == "serve":
            address_words.append(word)
        elif word in _ADDRESS:
            address_words += [word, value]
        elif word.startswith(tuple(f"{option}=" for option in _ADDRESS)):
            address_words.append(word)
    return address_words


@cache
def versions_of(packages: frozenset[str]) -> dict[str, str]:
    """Return the versions of this package, of `packages` and of the frameworks below them that are installed.

    Read once, before anything is recorded: reading metadata holds the GIL for a tenth of a second.
    """
    wanted = [*sorted(packages.difference(_FRAMEWORKS, {"sglang-instrument"})), *_FRAMEWORKS]
    versions = {package: version for package in wanted if (version := installed_version(package)) is not None}
    return {"sglang_instrument": __version__, **versions}


def _is_answer(site: Site) -> bool:
    return site.state == "found" or (site.expected and site.state != "pending")


def _described(table: PatchTable, site: Site) -> dict[str, Any]:
    described = {
        "table": table.name,
        "event": site.region.event,
        "target": str(site.target),
        "state": site.state,
        "lines": list(site.lines) if site.lines else None,
        "note": site.note or None,
        "expected": None if site.expected else False,
        "never_runs_with": variable_against(site.region),
    }
    return {key: value for key, value in described.items() if value is not None}
