"""Measure settings on the twin: validity first, then in alternating order until noise is small enough."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sglang_instrument.analysis.run.opening import Run
from sglang_instrument.errors import InstrumentError
from sglang_instrument.twin.agendas.files import read_agenda, write_agenda
from sglang_instrument.twin.playing.players import PacedPlayer, opened_players
from sglang_instrument.twin.servers.launches import Say, launched
from sglang_instrument.twin.trials.comparison import MeasuredSaving, savings, setting_rows
from sglang_instrument.twin.trials.figures import StepFigures, figures_of
from sglang_instrument.twin.trials.settings import RECORDED, TwinSetting, with_options
from sglang_instrument.twin.trials.validity import Validity, validity_of

if TYPE_CHECKING:
    from sglang_instrument.twin.agendas.planned import Agenda

_MOST_PASSES: Final = 20
_NARROW: Final = 0.03  # half of an interval's width, of the ratio
_FILES: Final = ".twin"


@dataclass(frozen=True)
class TwinOptions:
    """How a twin is played.

    Attributes:
        servers: Addresses of running servers; empty with `command`.
        command: Starts a server.
        count: How many servers it starts; None for as many as served the record.
        router: The policy of a router before them; None without one.
        settings: What is tried beside the command as it is.
        time_sec: No new pass begins after so many seconds.
        together: Whether the servers of all settings are up at once, and take turns by step; else each pass
            of a setting starts them anew.
        force: Whether settings are measured although the twin differs from the record.
        route, vocabulary, timeout_sec: As `player.play` takes them.
    """

    servers: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    count: int | None = None
    router: str | None = None
    settings: tuple[TwinSetting, ...] = ()
    time_sec: float = 0.0
    together: bool = False
    force: bool = False
    route: str | None = None
    vocabulary: int | None = None
    timeout_sec: float = 3600.0


@dataclass
class TwinAnswer:
    """What came of it.

    Attributes:
        folder: Of the run that the twin recorded.
        folders: By setting, of its run.
        missing: What the agenda lacks.
        validity: Of the twin under the recorded setting.
        rows: A row a setting, as the table `twin_settings` declares; empty if nothing was tried.
        savings: By setting, what it saves a step, as far as two pairs of steps tell.
    """

    folder: Path
    folders: dict[str, Path]
    missing: tuple[str, ...]
    validity: Validity
    rows: list[dict[str, Any]] = field(default_factory=list)
    savings: dict[str, MeasuredSaving] = field(default_factory=dict)


#: By setting, the figures of each pass and step.
Measured = dict[str, dict[tuple[int, int], StepFigures]]


class Twin:
    """Replays a record on servers, and measures settings.

    Args:
        run: The record.
        planned: Its agenda.
        log_dir: The folder that gets the twin's runs.
        options: How it is played.
        say: Told what goes on.
    """

    def __init__(
        self, run: Run, planned: Agenda, log_dir: Path, options: TwinOptions, say: Say = lambda _: None
    ) -> None:
        self._options, self._say = options, say
        self._record, self._missing = run, planned.missing
        self.folder = _new_folder(log_dir, run.folder.name)
        self._agenda = self.folder / _FILES / "agenda.jsonl"
        self._agenda.parent.mkdir()
        write_agenda(planned, self._agenda)
        self._steps, servers = [], set()
        self._is_exact = True
        for step in read_agenda(self._agenda):
            self._steps.append(step.step)
            self._is_exact &= not step.enough and all(turn.sampling.samples == 1 for turn in step.turns)
            servers |= {turn.server for turn in step.turns if turn.server is not None}
        self._count = options.count or max(1, len(servers))
        self._run_id = f"{time.strftime('%Y%m%dT%H%M%S')}-twin"
        self._measured: Measured = {}

    def measure(self) -> TwinAnswer:
        """Play the record's setting, hold it against the record, and measure the other settings.

        Raises:
            InstrumentError: A server cannot be started, died, or refuses requests.
        """
        base, others = TwinSetting(RECORDED), list(self._options.settings)
        begun = time.monotonic()
        with ExitStack() as stack:
            first = stack.enter_context(self._opened(base)) if self._keeps_up else None
            self._pass({base: first}, 1)
            validity = validity_of(
                figures_of(self._record),
                {step: figures for (_, step), figures in self._measured[base.name].items()},
                self._is_exact,
            )
            answer = TwinAnswer(self.folder, {base.name: self.folder}, self._missing, validity)
            if not others or not (self._options.force or (validity.steps and not validity.differing)):
                return answer
            players = {base: first}
            for setting in others:
                is_up = self._keeps_up
                players[setting] = stack.enter_context(self._opened(setting)) if is_up else None
                answer.folders[setting.name] = self._folder_of(setting)
            self._passes(players, begun)
        answer.rows = setting_rows(self._measured, self._record)
        answer.savings = savings(self._measured, self._record)
        return answer

    @property
    def _keeps_up(self) -> bool:
        return self._options.together or not self._options.settings

    def _passes(self, players: dict[TwinSetting, PacedPlayer | None], begun: float) -> None:
        """Play passes until all intervals are narrow, or the time is used.

        The first pass of the setting as launched was played alone, and is left out if servers take turns.
        """
        first = 2 if self._keeps_up else 1
        if self._keeps_up:
            self._measured.clear()
        for number in range(first, first + _MOST_PASSES):
            self._pass(players, number)
            rows = setting_rows(self._measured, self._record)
            used = time.monotonic() - begun
            if number > first and all(_is_narrow(row) for row in rows[1:]):
                return
            if used > self._options.time_sec:
                return

    def _pass(self, players: dict[TwinSetting, PacedPlayer | None], number: int) -> None:
        """Play all steps once under each setting, in an order that turns from pass to pass."""
        for setting in players:
            self._measured.setdefault(setting.name, {})  # rows are in this order
        order = [setting for setting in players if not self._has_pass(setting, number)]
        if number % 2 == 0:
            order.reverse()
        if self._keeps_up:
            for place in range(len(self._steps)):
                for setting in order if place % 2 == 0 else order[::-1]:
                    self._play(setting, players[setting], number, place)
        else:
            for setting in order:
                with self._opened(setting) as player:
                    for place in range(len(self._steps)):
                        self._play(setting, player, number, place)
        for setting in order:
            figures = figures_of(Run.open(self._folder_of(setting), cached=False))
            self._measured[setting.name] |= {(number, step): of_step for step, of_step in figures.items()}

    def _has_pass(self, setting: TwinSetting, number: int) -> bool:
        return any(played == number for played, _ in self._measured.get(setting.name, ()))

    def _play(self, setting: TwinSetting, player: PacedPlayer | None, number: int, place: int) -> None:
        assert player is not None  # noqa: S101
        self._say(f"{setting.name}: pass {number}, step {self._steps[place]}")
        player.play(number, place)

    def _folder_of(self, setting: TwinSetting) -> Path:
        if setting.name == RECORDED:
            return self.folder
        return self.folder.with_name(f"{self.folder.name}.{setting.folder}")

    @contextmanager
    def _opened(self, setting: TwinSetting) -> Iterator[PacedPlayer]:
        """Yield a player of a setting, which has played its first step once: that warmed the servers up."""
        options, folder = self._options, self._folder_of(setting)
        with ExitStack() as stack:
            urls: Sequence[str] = options.servers
            if options.command:
                urls = stack.enter_context(
                    launched(
                        with_options(options.command, setting.options),
                        setting.servers or self._count,
                        self._environment(folder),
                        folder / _FILES,
                        lambda words: self._say(f"{setting.name}: {words}"),
                        setting.router_before(options.router),
                    )
                )
            player = stack.enter_context(
                opened_players(
                    urls,
                    self._agenda,
                    folder,
                    self._run_id,
                    options.route,
                    options.vocabulary,
                    options.timeout_sec,
                )
            )
            self._say(f"{setting.name}: warming up")
            player.play(0, 0)
            yield player

    def _environment(self, folder: Path) -> dict[str, str]:
        """Return variables with which a server records what it does beside the player's run."""
        return {
            "SGLANG_INSTRUMENT": "1",
            "SGLANG_INSTRUMENT_LOG_DIR": str(folder.parent),
            "SGLANG_INSTRUMENT_EXPERIMENT": folder.name,
            "EXPERIMENT_NAME": folder.name,
            "SGLANG_INSTRUMENT_RUN_ID": self._run_id,
        }


def _is_narrow(row: dict[str, Any]) -> bool:
    return row["low"] is not None and row["high"] - row["low"] <= 2 * _NARROW * row["ratio"]


def _new_folder(log_dir: Path, name: str) -> Path:
    """Return a new folder beside the record; two twins at once get two."""
    for number in range(1, 10_000):
        folder = log_dir / f"{name}.twin-{number}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as reason:
            raise InstrumentError(
                f"cannot write {folder}: {reason}; --to DIR chooses another folder"
            ) from None
        return folder.absolute()
    raise InstrumentError(f"{log_dir} has 10,000 twins of {name}")
