"""Serve the questions over the Model Context Protocol, on the standard streams."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Final

import anyio.to_thread
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations

from sglang_instrument import __version__
from sglang_instrument.errors import InstrumentError
from sglang_instrument.mcp.questions import Questions

_INSTRUCTIONS: Final = """\
Why an RL rollout on SGLang is slow. Begin with `runs`, then `verdict`. `why` explains a step, `table` and
`sql` give the rows behind it, `advise` names a setting to change. `not_observed` says what the log cannot
tell: do not take it for zero. Each answer has the command that shows the same to a person."""
_ONLY_READS: Final = ToolAnnotations(read_only_hint=True, destructive_hint=False, open_world_hint=False)


def server_of(questions: Questions) -> MCPServer:
    """Return a server with a tool for each question."""
    server = MCPServer(
        "sglang-instrument", instructions=_INSTRUCTIONS, version=__version__, log_level="ERROR"
    )
    tools: list[Callable[..., str]] = [
        *(questions.runs, questions.verdict, questions.why, questions.table, questions.sql),
        *(questions.settings, questions.watch_until, questions.compare, questions.advise),
    ]
    for tool in tools:
        server.add_tool(_in_thread(tool), annotations=_ONLY_READS, structured_output=False)
    return server


def _in_thread(tool: Callable[..., str]) -> Callable[..., object]:
    """Return a tool that runs beside the event loop, and whose errors an agent reads."""

    @wraps(tool)
    async def run(**arguments: object) -> str:
        try:
            return await anyio.to_thread.run_sync(partial(tool, **arguments), abandon_on_cancel=True)
        except InstrumentError as error:
            raise ToolError(str(error)) from None

    return run
