"""Count what a run's files do not say, or say in vain: nothing is left out silently."""

from dataclasses import dataclass, field


@dataclass
class Health:
    """What was read and what was left out.

    Attributes:
        files: Log files read.
        records: Records read, control records and left out ones not counted.
        torn: Lines that begin like a record and end early, as a kill leaves them.
        foreign: Lines that are no records.
        unreadable: Files that could not be read (to their end), with the reason.
        ignored: Files ending in .jsonl whose name names no role and rank.
        headerless: Files without a `log_opened`, as the reference's own fork writes them.
        local_times: Records whose timestamp has no UTC offset; it is taken as UTC.
        runs: Run ids whose records are used, oldest first.
        older: Records left out because a newer run wrote the same step, by run id.
        dropped: Records that the writers say they dropped.
        sampled_out: Records that the writers say they sampled out, as they were told to.
        unclosed: (step, validate, worker) of files without a `step_closed` of the run that is used.
        open_spans: `open_spans` records: something hung for a while, or for ever.
    """

    files: int = 0
    records: int = 0
    torn: int = 0
    foreign: int = 0
    unreadable: dict[str, str] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)
    headerless: int = 0
    local_times: int = 0
    runs: list[str] = field(default_factory=list)
    older: dict[str, int] = field(default_factory=dict)
    dropped: int = 0
    sampled_out: int = 0
    unclosed: list[tuple[int, bool, int]] = field(default_factory=list)
    open_spans: int = 0

    def sentence(self) -> str:
        """Say in one line whether the numbers can be trusted, and if not wholly, why."""
        faults = [text for count, text in self._faults() if count]
        read = f"{self.records:,} records in {self.files} {_plural(self.files, 'file')}"
        return f"{read}: {'; '.join(faults)}" if faults else f"{read}: nothing dropped, torn or left open"

    def _faults(self) -> list[tuple[int, str]]:
        older = sum(self.older.values())
        return [
            (self.dropped, f"{self.dropped:,} dropped by the writer"),
            (self.torn, f"{self.torn} torn {_plural(self.torn, 'line')}"),
            (self.foreign, f"{self.foreign} foreign {_plural(self.foreign, 'line')}"),
            (len(self.unclosed), f"not closed: {self._name_unclosed()}"),
            (self.open_spans, f"{self.open_spans} {_plural(self.open_spans, 'report')} of open spans"),
            (len(self.unreadable), f"unreadable: {', '.join(self.unreadable)}"),
            (len(self.ignored), f"ignored: {', '.join(self.ignored)}"),
            (older, f"{older:,} records of older runs left out ({', '.join(self.older)})"),
            (self.sampled_out, f"{self.sampled_out:,} sampled out as asked"),
            (self.headerless, f"{self.headerless} {_plural(self.headerless, 'file')} without log_opened"),
        ]

    def _name_unclosed(self) -> str:
        named = [
            f"{'validation' if validate else 'step'} {step} worker {worker}"
            for step, validate, worker in self.unclosed[:3]
        ]
        rest = len(self.unclosed) - len(named)
        return ", ".join(named) + (f" and {rest} more" if rest else "")


def _plural(count: int, noun: str) -> str:
    return noun if count == 1 else f"{noun}s"
