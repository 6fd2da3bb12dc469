"""Count what a run's logs lack and what the reader left out: nothing is left out silently."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from sglang_instrument.plain_text import listed

_NAMED: Final = 3  # names in a sentence; --json lists all


@dataclass
class Health:
    """What the reader read and what it left out.

    Attributes:
        files: Log files read.
        records: Records read, without control records and those left out.
        torn: Lines that begin like a record and end early, as after a kill.
        foreign: Other lines that are not records.
        unreadable: Files that could not be read (to their end), with the reason.
        empty: Files without any line, not even a header.
        newer: Files that a newer version wrote, with their `log_version`.
        ignored: Entries of the run's folder that were not read: they are no logs, or their names have no role
            and rank.
        headerless: Files without a `log_opened`, as the reference's own fork writes them.
        local_times: Records whose timestamp has no UTC offset; it counts as UTC.
        runs: Run ids whose records are used, oldest first.
        older: Records left out because a newer run wrote the same step, by run id.
        at_once: Ids of launches that wrote steps at the same time, because they share the experiment's name.
        dropped: Records that the writers report as dropped.
        sampled_out: Records that the writers left out by sampling, as configured.
        unclosed: (step, validate, worker) of files that have neither a `step_closed` nor, at their end, a
            `log_closed`.
        missing: (step, worker) without a file, though this worker has files in earlier and later steps.
        outside: Records that belong to no step; `records` includes them.
        ended_abruptly: Processes that are gone and did not close their logs, as after a kill by Ray or a
            launcher; their last records may be missing.
        open_at_end: What was open in children of the program when they were killed, such as "score of request
            r7", as far as they had reported it.
        open_spans: `open_spans` records: something hung, for a while or for good.
        read_as: The format of another project's log, in words; "" for our own.
        cannot_show: What logs of this format do not hold, a phrase each.
        pruned: How many of the files `prune` deleted, by day (UTC); their digest answers for them.
        unfit: By field, how many values were left out, as they fit no column: NaN, a text for a number.
        unfit_examples: By field, a file and the first such value in it.
    """

    files: int = 0
    records: int = 0
    torn: int = 0
    foreign: int = 0
    unreadable: dict[str, str] = field(default_factory=dict)
    empty: list[str] = field(default_factory=list)
    newer: dict[str, int] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)
    headerless: int = 0
    local_times: int = 0
    runs: list[str] = field(default_factory=list)
    older: dict[str, int] = field(default_factory=dict)
    at_once: list[str] = field(default_factory=list)
    dropped: int = 0
    sampled_out: int = 0
    unclosed: list[tuple[int, bool, int]] = field(default_factory=list)
    missing: list[tuple[int, int]] = field(default_factory=list)
    outside: int = 0
    ended_abruptly: list[str] = field(default_factory=list)
    open_at_end: list[str] = field(default_factory=list)
    open_spans: int = 0
    pruned: dict[str, int] = field(default_factory=dict)
    read_as: str = ""
    cannot_show: list[str] = field(default_factory=list)
    unfit: dict[str, int] = field(default_factory=dict)
    unfit_examples: dict[str, str] = field(default_factory=dict)

    def sentence(self) -> str:
        """Say in one line whether the numbers can be trusted, and if not fully, why."""
        faults = [text for count, text in self._faults() if count]
        read = f"{self.records:,} records in {self.files} {_plural(self.files, 'file')}"
        notes = [text for count, text in self._notes() if count]
        return f"{read}: {'; '.join([*(faults or ['nothing dropped, torn or left open']), *notes])}"

    def _faults(self) -> list[tuple[int, str]]:
        older = {run: records for run, records in self.older.items() if run not in self.at_once}
        beside = sum(self.older.values()) - sum(older.values())
        return [
            (self.dropped, f"{self.dropped:,} dropped by the writer"),
            (self.torn, f"{self.torn} torn {_plural(self.torn, 'line')}"),
            (self.foreign, f"{self.foreign} foreign {_plural(self.foreign, 'line')} (not a record)"),
            (len(self.unclosed), f"not closed: {_listed(map(_name_step, self.unclosed))}"),
            (
                len(self.missing),
                f"no file, though earlier and later steps have one: {_listed(map(_name_gap, self.missing))}",
            ),
            (len(self.empty), f"empty: {_listed(self.empty)}"),
            (len(self.newer), f"written by a newer version, fields may be misread: {self._name_newer()}"),
            (len(self.unfit), self.unfit_words()),
            (self.open_spans, f"{self.open_spans} {_plural(self.open_spans, 'report')} of open spans"),
            (len(self.unreadable), f"unreadable: {', '.join(self.unreadable)}"),
            (len(older), f"{sum(older.values()):,} records of older runs left out ({', '.join(older)})"),
            (
                len(self.at_once),
                f"{len(self.at_once)} launches wrote here at the same time ({', '.join(self.at_once)}), so "
                f"{beside:,} records are left out: give each an EXPERIMENT_NAME of its own",
            ),
            (self.sampled_out, f"{self.sampled_out:,} left out by sampling, as configured"),
            (self.headerless, f"{self.headerless} {_plural(self.headerless, 'file')} without log_opened"),
        ]

    def _notes(self) -> list[tuple[int, str]]:
        """Return what readers should know, but is no error."""
        gone = f"{len(self.ended_abruptly)} {_plural(len(self.ended_abruptly), 'process')} ended abruptly"
        usual = ", as SGLang ends its own" if all(map(_ended_by_sglang, self.ended_abruptly)) else ""
        lost = f"({_listed(self.ended_abruptly)}){usual}: records of the last 0.1 s may be missing"
        return [
            (self.outside, f"{self.outside:,} {_plural(self.outside, 'record')} outside of any step"),
            (len(self.ended_abruptly), f"{gone} {lost}"),
            (len(self.open_at_end), f"open when their process ended: {_listed(self.open_at_end)}"),
            (len(self.pruned), f"{_name_pruned(self.pruned)}; answers about them stay"),
            (len(self.ignored), f"not read: {_listed(self.ignored)}"),
            (len(self.read_as), f"read as {self.read_as}"),
            (len(self.cannot_show), f"which cannot show: {'; '.join(self.cannot_show)}"),
        ]

    def unfit_words(self) -> str:
        """Name the fields with values that were left out: how many of each, and an example."""
        fields = _listed(
            f"{name}: {count:,} ({self.unfit_examples[name]})" for name, count in self.unfit.items()
        )
        values = sum(self.unfit.values())
        return f"{values:,} {_plural(values, 'value')} that no column can hold, left out: {fields}"

    def _name_newer(self) -> str:
        return _listed(f"{path} (log_version {version})" for path, version in self.newer.items())


def _name_pruned(pruned: dict[str, int]) -> str:
    files = sum(pruned.values())
    last = max(pruned, default="")
    when = f"on {last}" if len(pruned) == 1 else f"on {len(pruned)} days, the last on {last}"
    return f"{files:,} {_plural(files, 'file')} pruned {when}"


def _ended_by_sglang(process: str) -> bool:
    """Return whether SGLang starts a process like this one, and kills it at its own end."""
    return process.startswith(("scheduler_", "detokenizer_", "controller_"))


def _name_step(step: tuple[int, bool, int]) -> str:
    number, validate, worker = step
    return f"{'validation' if validate else 'step'} {number} worker {worker}"


def _name_gap(gap: tuple[int, int]) -> str:
    return _name_step((gap[0], False, gap[1]))


def _listed(names: Iterable[str]) -> str:
    """Return the first names, and how many others there are."""
    return listed(list(names), _NAMED)


def _plural(count: int, noun: str) -> str:
    return noun if count == 1 else f"{noun}{'es' if noun.endswith('s') else 's'}"
