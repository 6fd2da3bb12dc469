"""Screens above the main one: a worker, a request, the verdict so far, and what the screen means."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import ClassVar, Final

from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Footer, Static

from sglang_instrument.live import gauge_words, words
from sglang_instrument.live.state import OpenRequest, Snapshot, StepNow
from sglang_instrument.live.terminal import details
from sglang_instrument.plain_text import plain

_DRAW_SEC: Final = 0.5
_EVENTS: Final = 15

_HELP: Final = """\
The first lines: the step in progress, the share of its requests that ended, and where the open ones are.

  engine       a generation call, and the request's own code around it
  tool, interaction, environment, reward   what the innermost open span of a request is
  barrier      workers that wait for others

Below, in red, what goes wrong:

  hang         a span is open for more than three times as long as the longest of its kind that ended
  death        a process ended in the middle of a step, or writes no more with requests open
  loss         records that a writer had to drop
  follower     what this command cannot read

Workers: "waits for 3" is in a barrier, or done with its step, while worker 3 is not. "silent" is the time
since its last line. Requests: the oldest open ones; turns count from 1, tokens are those of turns that ended.

"g": schedulers, and the GPUs of this host, side by side.

At the bottom: what each of the last steps was spent on, as `summary` has it, the newest on the right. All
rows have one scale; the number is that of the newest step.

Training is not touched by this: it reads what the processes log."""


class ToldScreen(ModalScreen[None]):
    """A box of text above the main screen."""

    CSS = """
    ToldScreen { align: center middle; }
    #box { width: 90%; height: 85%; border: round $primary; padding: 0 1; background: $surface; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,enter", "app.pop_screen", "back")]

    title_of_box = ""

    def compose(self) -> ComposeResult:
        """Make the box."""
        with VerticalScroll(id="box") as box:
            box.border_title = Text(plain(self.title_of_box)).markup
            yield Static(id="told")
        yield Footer()

    def tell(self, lines: Iterable[str] | Text) -> None:
        """Fill the box."""
        text = lines if isinstance(lines, Text) else Text("\n".join(map(plain, lines)))
        self.query_one("#told", Static).update(text)


class HelpScreen(ToldScreen):
    """What the main screen means."""

    title_of_box = "help"

    def on_mount(self) -> None:
        """Show the text."""
        self.tell(Text(_HELP))


class WorkerScreen(ToldScreen):
    """One worker, as it is now."""

    def __init__(self, role: str, worker: int, snapshot: Callable[[], Snapshot]) -> None:
        super().__init__()
        self._role, self._worker, self._snapshot = role, worker, snapshot
        self.title_of_box = f"{role} {worker}"

    def on_mount(self) -> None:
        """Draw at once, and then again and again."""
        self._draw()
        self.set_interval(_DRAW_SEC, self._draw)

    def _draw(self) -> None:
        self.tell(worker_lines(self._snapshot(), self._role, self._worker))


def worker_lines(snapshot: Snapshot, role: str, worker: int) -> list[str]:
    """Return what is known of a worker, in lines."""
    process = next(
        (process for process in snapshot.workers if (process.role, process.worker) == (role, worker)), None
    )
    if process is None:
        return ["it has logged nothing in this run"]
    lines = [
        f"step {process.step}: {words.worker_state(process)}, "
        f"silent for {words.duration(process.silent_sec)}",
        f"{process.requests_done:,} requests done, {process.requests_open:,} open: "
        f"{words.where(process.open)}",
        f"{process.tokens:,} tokens, {process.tokens_per_sec:,.0f} per second",
    ]
    mine = [each for each in snapshot.problems if (each.role, each.worker) == (role, worker)]
    lines += ["", *(words.problem(each, snapshot.until_us) for each in mine)] if mine else []
    oldest = snapshot.step.oldest if snapshot.step is not None else ()
    requests = [each for each in oldest if (each.role, each.worker) == (role, worker)]
    if requests:
        lines += ["", "its oldest requests:"]
        for each in requests:
            turn = "" if each.turn is None else f", turn {each.turn + 1}"
            name, age = words.short_id(each.request_id or "-"), words.duration(each.age_sec)
            lines.append(f"  {name}: {age}{turn}, {words.request_event(each) or 'open'}")
    counted = snapshot.totals.get((role, worker))
    if counted is not None:
        lines += ["", "its events since the run began, those that took longest in all:"]
        events = sorted(counted.events.items(), key=lambda item: -item[1][1])[:_EVENTS]
        for (event, _), (count, sec) in events:
            lines.append(f"  {event:34} {count:>9,} times {words.duration(sec):>14}")
    return lines


class GaugesScreen(ToldScreen):
    """The schedulers and the GPUs of this host, side by side, as they are now."""

    title_of_box = "gauges"

    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        super().__init__()
        self._snapshot = snapshot

    def on_mount(self) -> None:
        """Draw at once, and then again and again."""
        self._draw()
        self.set_interval(_DRAW_SEC, self._draw)

    def _draw(self) -> None:
        self.tell(gauge_lines(self._snapshot()))


def gauge_lines(snapshot: Snapshot) -> list[str]:
    """Return what is known of schedulers and GPUs, in lines; what is not says who would tell it."""
    schedulers = [gauge_words.scheduler_cells(scheduler) for scheduler in snapshot.schedulers]
    lines = [
        f"{name:18} {running:>5} running {waiting:>5} waiting  KV cache {cache:>5}  {course}"
        for name, running, waiting, course, cache, _ in schedulers
    ]
    first = gauge_words.schedulers_line(snapshot) or "no scheduler has logged how full it is"
    gpus = [
        f"{number:>3} {busy:>5} busy  {memory:>18}  {watts:>7}  {clocks:>13} MHz  {held}"
        for number, _, busy, memory, watts, clocks, held in map(gauge_words.gpu_cells, snapshot.gpus)
    ]
    of_gpus = gauge_words.gpus_line(snapshot) or "NVIDIA's driver shows no GPU of this host, or no run runs"
    return [first, *lines, "", of_gpus, *gpus]


class RequestScreen(ToldScreen):
    """One request: what it did so far."""

    def __init__(self, logs: Path, step: StepNow, request: OpenRequest) -> None:
        super().__init__()
        self._logs, self._step, self._one = logs, step, request
        self.title_of_box = f"request {request.request_id} of {request.role} {request.worker}"

    def on_mount(self) -> None:
        """Read its records beside the drawing."""
        self.tell(["reading ..."])
        self._read()

    @work(thread=True)
    def _read(self) -> None:
        lines = list(details.request_lines(self._logs, self._step, self._one))
        self.app.call_from_thread(self.tell, lines)


class VerdictScreen(ToldScreen):
    """The verdict so far, as `summary` gives it."""

    title_of_box = "verdict so far"

    def __init__(self, logs: str) -> None:
        super().__init__()
        self._logs = logs

    def on_mount(self) -> None:
        """Ask for it in a thread of its own."""
        self.tell(["reading the whole run ..."])
        self._read()

    @work(thread=True)
    def _read(self) -> None:
        lines = details.verdict_lines(self._logs)
        self.app.call_from_thread(self.tell, lines)
