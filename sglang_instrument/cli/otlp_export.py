"""Write a run as OTLP JSON lines, and say what was written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from sglang_instrument.errors import InstrumentError
from sglang_instrument.extras import install_extra

if TYPE_CHECKING:
    from sglang_instrument.analysis.run.opening import Run


def write(
    target: Path,
    run: Run,
    steps: list[int] | None,
    validate: bool | None,
    progress: Callable[[int, int], object],
    *,
    force: bool = False,
) -> list[str]:
    """Write the file and return what to tell a person.

    Raises:
        InstrumentError: The target exists and `force` is not set, it cannot be written, or the extra `otlp`
            is not installed.
        LogError: The records of a step that was asked for were pruned.
    """
    try:
        from sglang_instrument.report.otlp.export import write_otlp
    except ModuleNotFoundError as missing:
        raise InstrumentError(f"export --otlp needs {missing.name}: {install_extra('otlp')}") from missing
    if str(target) == "-":
        raise InstrumentError("--otlp writes a file, which appears when it is complete; give its name")
    if target.is_dir() or not target.absolute().parent.is_dir():
        raise InstrumentError(
            f"--otlp {target}: must be a file in an existing folder, such as run.otlp.jsonl"
        )
    if target.exists() and not force:
        raise InstrumentError(f"{target} exists; --force overwrites it")
    if steps is not None:
        run.demand_records(steps, validate=validate)
    try:
        written = write_otlp(target, run, steps, validate, progress)
    except OSError as error:
        raise InstrumentError(f"--otlp {target}: cannot be written: {error.strerror or error}") from error
    spans = written.requests + written.calls + written.tools
    said = [
        f"{target}: {spans:,} spans in {written.lines:,} lines, {target.stat().st_size / 1e6:,.1f} MB:"
        f" {written.requests:,} requests (invoke_agent), {written.calls:,} engine calls (chat),"
        f" {written.tools:,} tools (execute_tool); {written.rewards:,} rewards"
    ]
    if written.joined:
        said.append(f"{written.joined:,} requests stand below a span of another program, by traceparent")
    if written.unended:
        said.append(f"{written.unended:,} requests are unended: they last until they were last reported")
    if not spans:
        said.append(
            "no request was logged in these steps: the events request and turn_engine_call record them"
        )
    return said
