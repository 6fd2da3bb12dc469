"""Draw what is known of a run as one page, in the words of `watch --once`; its script fetches it anew."""

import base64
import hashlib
from collections.abc import Iterable, Iterator
from html import escape
from pathlib import Path
from typing import Final

from sglang_instrument.live import gauge_words, words
from sglang_instrument.live.serving.chart import chart_css, chart_of
from sglang_instrument.live.state import OpenRequest, RunBeside, SchedulerNow, Snapshot, StepDone, WorkerNow
from sglang_instrument.plain_text import plain

_TEMPLATE: Final = (
    Path(__file__).with_name("page.html").read_text(encoding="utf-8").replace("/* parts */", chart_css())
)
_SCRIPT: Final = _TEMPLATE.partition("<script>")[2].partition("</script>")[0]
_STYLE: Final = _TEMPLATE.partition("<style>")[2].partition("</style>")[0]
_BAD: Final = ("hangs", "dead")
_SHOWN: Final = 100  # workers
_REQUESTS: Final = 20
_PROBLEMS: Final = 30
_STEPS: Final = 8


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


#: What a browser may load and run of the page: its own script, its own style, and the page again.
POLICY: Final = (
    f"default-src 'none'; script-src {_hash(_SCRIPT)}; style-src {_hash(_STYLE)}; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def page_of(snapshot: Snapshot) -> str:
    """Return the page."""
    parts = dict(_parts(snapshot))
    text = _TEMPLATE
    for name, html in parts.items():
        text = text.replace(f"<!-- {name} -->", html, 1)
    return text


def _parts(snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    """Yield what fills each place of the template; later places stand further below."""
    step = snapshot.step
    bad = sum(problem.kind in ("hang", "death") for problem in snapshot.problems)
    run = "" if snapshot.run_id is None else f" (run {snapshot.run_id})"
    yield "title", _text(f"{'! ' if bad else ''}{words.headline(snapshot)}")
    yield "run", _text(f"{snapshot.logs}{run}")
    yield "status", "Nothing hangs." if not bad else f"<strong>Hangs and deaths: {bad}</strong>"
    yield "headline", _text(words.headline(snapshot))
    yield "bar", _text(words.bar(step, 24)) if step is not None else ""
    yield "forecast", _text(words.forecast(step)) if step is not None else ""
    yield "where", _text(words.where(step.open)) if step is not None else ""
    yield "ended", "" if snapshot.ended is None else _text(f"ended: {snapshot.ended}")
    yield "problems", "".join(_problems(snapshot))
    yield "chart", chart_of(snapshot.done)
    shown = sorted(snapshot.workers, key=lambda worker: worker.state not in _BAD)[:_SHOWN]
    some = f", {len(shown)} of {len(snapshot.workers)}"
    yield "of-workers", some if len(shown) < len(snapshot.workers) else ""
    yield "workers", "".join(map(_worker, shown))
    oldest = step.oldest[:_REQUESTS] if step is not None else ()
    yield "requests", "".join(map(_request, oldest))
    yield "of-schedulers", _text(gauge_words.schedulers_line(snapshot))
    yield "schedulers", "".join(map(_scheduler, snapshot.schedulers[:_SHOWN]))
    yield "of-gpus", _text(gauge_words.gpus_line(snapshot))
    yield "gpus", "".join(_row(*map(_text, gauge_words.gpu_cells(gpu))) for gpu in snapshot.gpus)
    yield "ledger", "".join(map(_part, words.ledger_rows(snapshot.done, _STEPS)))
    yield "steps", "".join(map(_done, reversed(snapshot.done[-_STEPS:])))
    yield "runs", "".join(_run(run, snapshot.at_us) for run in snapshot.runs)


def _problems(snapshot: Snapshot) -> Iterator[str]:
    for problem in snapshot.problems[:_PROBLEMS]:
        yield f"<li>{_text(words.problem(problem, snapshot.until_us))}</li>"
    if len(snapshot.problems) > _PROBLEMS:
        yield f"<li>and {len(snapshot.problems) - _PROBLEMS} more</li>"


def _worker(worker: WorkerNow) -> str:
    state = _text(words.worker_state(worker))
    return _row(
        _text(words.worker_name(worker)),
        f"<strong>{state}</strong>" if worker.state in _BAD else state,
        str(worker.step),
        f"{worker.requests_done:,}",
        f"{worker.requests_open:,}",
        _text(words.where(worker.open)),
        f"{worker.tokens_per_sec:,.0f}",
        words.duration(worker.silent_sec),
    )


def _request(request: OpenRequest) -> str:
    turn = words.request_turn(request)
    return _row(
        _text(words.short_id(request.request_id or "")),
        str(request.worker),
        "" if turn is None else str(turn),
        _text(words.request_event(request) or ""),
        words.duration(request.age_sec),
        "" if request.tokens is None else f"{request.tokens:,}",
    )


def _scheduler(scheduler: SchedulerNow) -> str:
    name, running, waiting, running_course, cache, cache_course = gauge_words.scheduler_cells(scheduler)
    return _row(_text(name), running, waiting, _course(running_course), cache, _course(cache_course))


def _course(line: str) -> str:
    return f'<span class="line" aria-hidden="true">{_text(line)}</span>'


def _part(row: tuple[str, str, float]) -> str:
    name, line, sec = row
    return _row(_text(name), _course(line), words.duration(sec))


def _done(step: StepDone) -> str:
    mostly = max(step.ledger, key=lambda part: step.ledger[part], default="")
    return _row(
        _text(words.named_step(step)),
        _duration(step.duration_sec),
        f"{step.requests:,}",
        _duration(step.p50_sec),
        _duration(step.p99_sec),
        "" if step.straggler is None else f"worker {step.straggler}: {words.duration(step.straggler_sec)}",
        _text(mostly),
    )


def _run(run: RunBeside, at_us: int) -> str:
    written = max(0.0, (at_us - run.written_us) / 1e6)
    return _row(
        _text(run.name),
        "this page" if run.is_followed else "",
        "" if run.newest_step is None else str(run.newest_step),
        f"{words.duration(written)} ago" if run.written_us else "",
    )


def _duration(sec: float | None) -> str:
    return "" if sec is None else words.duration(sec)


def _row(head: str, *cells: str) -> str:
    return f'<tr><th scope="row">{head}</th>{_cells(cells)}</tr>'


def _cells(cells: Iterable[str]) -> str:
    return "".join(f"<td>{cell}</td>" for cell in cells)


def _text(text: str) -> str:
    """Return text from a log for the page: no markup, no control characters."""
    return escape(plain(text))
