"""Draw a running run on a terminal: `sglang-instrument watch`."""

import sys
from pathlib import Path
from typing import ClassVar, Final

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.widgets import Footer, Static

from sglang_instrument.live import gauge_words, words
from sglang_instrument.live.children import yield_to_training
from sglang_instrument.live.follower import Follower
from sglang_instrument.live.state import OpenRequest, Snapshot, WorkerNow
from sglang_instrument.live.terminal.hang_up import end_with_terminal
from sglang_instrument.live.terminal.rows import Cell, LiveTable, Row
from sglang_instrument.live.terminal.screens import (
    GaugesScreen,
    HelpScreen,
    RequestScreen,
    VerdictScreen,
    WorkerScreen,
)
from sglang_instrument.plain_text import plain

_DRAW_SEC: Final = 1.0
_PROBLEMS: Final = 5  # lines
_REQUESTS: Final = 50  # rows
_BAR: Final = 24  # characters
_SILENT_SEC: Final = 5.0  # less is not worth a look
_STATES: Final = {"hangs": "bold red", "dead": "bold red", "waits": "yellow", "ended": "dim"}
_URGENT: Final = {"dead": 0, "hangs": 1}
#: Where its requests are comes last: on a narrow terminal the end of that is cut off, and no number.
_WORKERS: Final = ("worker", "state", "done", "open", "tok/s", "silent", "where")
_OLDEST: Final = ("request", "worker", "turn", "in", "age", "tokens")


def watch(logs: Path, run_id: str | None, with_stacks: bool = False) -> Snapshot:
    """Show a run until a person quits; return what was known last. Arguments are those of `Follower`."""
    follower = Follower(logs, run_id, with_stacks=with_stacks)
    yield_to_training()
    end_with_terminal(sys.stdin.fileno())
    follower.start()
    try:
        Terminal(follower).run()
        return follower.snapshot()
    finally:
        follower.stop()


class Terminal(App[None]):
    """The screen: the step in progress, problems, workers beside the oldest requests, and the last steps."""

    TITLE = "sglang-instrument watch"
    ENABLE_COMMAND_PALETTE = False
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (110, "-wide")]  # noqa: RUF012 - textual's own declaration
    VERTICAL_BREAKPOINTS = [(0, "-short"), (34, "-tall")]  # noqa: RUF012 - as above
    CSS = """
    #head { height: auto; padding: 0 1; }
    #problems { height: auto; padding: 0 1; }
    #tables { layout: horizontal; height: 1fr; }
    #ledger { height: auto; padding: 0 1; border-top: solid $primary; }
    #workers, #requests { width: 1fr; height: 1fr; padding-right: 1; }
    .-narrow #tables { layout: vertical; }
    .-short #ledger { display: none; }
    .-short #problems { max-height: 6; }
    #workers, #requests { min-height: 3; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "quit"),
        Binding("enter", "open", "open the worker or request", priority=True),
        Binding("tab", "app.focus_next", "other table", show=False),
        Binding("g", "gauges", "gauges"),
        Binding("v", "verdict", "verdict so far"),
        Binding("question_mark", "explain", "help", key_display="?"),
    ]

    def __init__(self, follower: Follower) -> None:
        super().__init__()
        self._follower = follower
        self.snapshot = follower.snapshot()
        self._told: dict[str, Text] = {}
        self._texts = {name: Static(id=name) for name in ("head", "problems", "ledger")}
        self._of_workers = LiveTable(_WORKERS, id="workers")
        self._of_requests = LiveTable(_OLDEST, id="requests")

    def compose(self) -> ComposeResult:
        """Make the widgets."""
        yield self._texts["head"]
        yield self._texts["problems"]
        with Container(id="tables"):
            yield self._of_workers
            yield self._of_requests
        yield self._texts["ledger"]
        yield Footer()

    def on_mount(self) -> None:
        """Draw at once, and then again and again."""
        self._of_workers.focus()
        self.draw()
        self.set_interval(_DRAW_SEC, self.draw)

    def draw(self) -> None:
        """Draw the newest snapshot."""
        self.snapshot = snapshot = self._follower.snapshot()
        width = self.size.width
        texts = {"head": _head(snapshot), "problems": _problems(snapshot), "ledger": _ledger(snapshot, width)}
        for name, text in texts.items():
            before = self._told.get(name)
            if text != before:  # a layout only where it changes: it costs more than all the rest
                is_as_high = before is not None and _height(before, width) == _height(text, width)
                self._texts[name].update(text, layout=not is_as_high)
                self._told[name] = text
        workers = sorted(snapshot.workers, key=lambda worker: _URGENT.get(worker.state, 2))
        rows = {f"{worker.role}_{worker.worker}": _worker_row(worker) for worker in workers}
        self._of_workers.show(rows)
        oldest = snapshot.step.oldest[:_REQUESTS] if snapshot.step is not None else ()
        requests = {
            f"{request.role}_{request.worker}/{request.request_id}": _request_row(request)
            for request in oldest
        }
        self._of_requests.show(requests)

    def action_open(self) -> None:
        """Open the worker or the request under the cursor."""
        if len(self.screen_stack) > 1:
            self.pop_screen()
        elif isinstance(self.focused, LiveTable) and (key := self.focused.chosen()) is not None:
            self._open(self.focused.id or "", key)

    def _open(self, table: str, key: str) -> None:
        if table == "workers":
            role, _, worker = key.rpartition("_")
            self.push_screen(WorkerScreen(role, int(worker), lambda: self.snapshot))
            return
        step = self.snapshot.step
        oldest = step.oldest if step is not None else ()
        shown_request = next(
            (request for request in oldest if f"{request.role}_{request.worker}/{request.request_id}" == key),
            None,
        )
        if shown_request is not None and step is not None:
            self.push_screen(RequestScreen(Path(self.snapshot.logs), step, shown_request))

    def action_verdict(self) -> None:
        """Show the verdict so far."""
        if len(self.screen_stack) == 1:
            of_run = "" if self._follower.run_id is None else f"@{self._follower.run_id}"
            self.push_screen(VerdictScreen(f"{self.snapshot.logs}{of_run}"))

    def action_gauges(self) -> None:
        """Show the schedulers and GPUs."""
        if len(self.screen_stack) == 1:
            self.push_screen(GaugesScreen(lambda: self.snapshot))

    def action_explain(self) -> None:
        """Show what the screen means."""
        if len(self.screen_stack) == 1:
            self.push_screen(HelpScreen())


def _height(text: Text, width: int) -> int:
    """Return about how many lines a text takes; 0 for none."""
    return sum(1 + len(line) // max(1, width - 2) for line in text.plain.splitlines())


def _head(snapshot: Snapshot) -> Text:
    run = f"{snapshot.logs}" + ("" if snapshot.run_id is None else f" (run {snapshot.run_id})")
    text = Text(f"{plain(run)}\n", "dim")
    text.append(plain(words.headline(snapshot)), "bold")
    step = snapshot.step
    if step is not None and not step.is_over:
        text.append("\n")
        text.append(words.bar(step, _BAR), "green")
        text.append(f" {plain(words.where(step.open))}")
        if said := words.forecast(step):
            text.append(f"\n{plain(said)}", "cyan")
    if snapshot.ended is None:
        for line in filter(None, (gauge_words.schedulers_line(snapshot), gauge_words.gpus_line(snapshot))):
            text.append(f"\n{plain(line)}", "dim")
    if snapshot.ended is not None:
        text.append(f"\nended: {plain(snapshot.ended)}", "bold yellow")
    if snapshot.behind_sec > 3:
        text.append(f"\nreading is {words.duration(snapshot.behind_sec)} behind", "yellow")
    return text


def _problems(snapshot: Snapshot) -> Text:
    lines = [plain(words.problem(problem, snapshot.until_us)) for problem in snapshot.problems]
    if len(lines) > _PROBLEMS:
        lines = [*lines[: _PROBLEMS - 1], f"{len(lines) - _PROBLEMS + 1} more problems"]
    return Text("\n".join(lines), "bold red")


def _ledger(snapshot: Snapshot, width: int) -> Text:
    rows = words.ledger_rows(snapshot.done, max(10, width - 60))
    if not rows:
        return Text("no step has ended yet", "dim")
    steps = [step for step in snapshot.done if not step.validate]
    last = steps[-1]
    late = (
        ""
        if last.straggler is None
        else (f"; the others waited {words.duration(last.straggler_sec)} for worker {last.straggler}")
    )
    took = "" if last.duration_sec is None else f" took {words.duration(last.duration_sec)}"
    text = Text(f"what the last steps were spent on; step {last.step}{took}{late}", "dim")
    for part, line, sec in rows:
        text.append(f"\n{plain(part):>24} ", "")
        text.append(line, "blue")
        text.append(f" {words.duration(sec)}")
    return text


def _worker_row(worker: WorkerNow) -> Row:
    return (
        Cell(words.worker_name(worker)),
        Cell(words.worker_state(worker), _STATES.get(worker.state, "")),
        _number(worker.requests_done),
        _number(worker.requests_open),
        _number(round(worker.tokens_per_sec)),
        Cell(words.duration(worker.silent_sec) if worker.silent_sec >= _SILENT_SEC else "", right=True),
        Cell(words.where(worker.open)),
    )


def _request_row(request: OpenRequest) -> Row:
    return (
        Cell(words.short_id(request.request_id or "-")),
        Cell(str(request.worker), right=True),
        _number(words.request_turn(request)),
        Cell(words.request_event(request) or ""),
        Cell(words.duration(request.age_sec), right=True),
        _number(request.tokens),
    )


def _number(value: int | None) -> Cell:
    return Cell("" if value is None else f"{value:,}", right=True)
