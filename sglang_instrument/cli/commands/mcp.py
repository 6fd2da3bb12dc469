"""Serve a run's questions to a coding agent, over the Model Context Protocol."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from sglang_instrument.cli.tables import print_line
from sglang_instrument.errors import InstrumentError

HELP: Final = """\
Let a coding agent ask about runs: a server of the Model Context Protocol on stdin and stdout. It reads the
runs in the folders that are named here, and nothing else.

    claude mcp add rollouts -- sglang-instrument mcp ~/train/logs     # a client that takes a command
    sglang-instrument mcp ~/train/logs /mnt/shared/logs/gsm8k_600     # folders of experiments, or of one
    sglang-instrument mcp --skill > .claude/skills/rollouts/SKILL.md  # how an agent should use it

    {"mcpServers": {"rollouts": {"command": "sglang-instrument", "args": ["mcp", "/home/me/train/logs"]}}}

runs          the runs, with their verdicts          settings     of trainer and engine
verdict       what cost time, with the evidence      compare      two runs: what differs by more than noise
why           one step: ledger, workers, requests    advise       which setting to change, what it saves
table, sql    rows of the run's tables               watch_until  wait for a hang, a death, the end of a step

Every answer is JSON of less than 4 kB, with the command that shows the same to a person, and what the log
does not tell. It has no text of the model: logs hold none. The server writes nothing but the store beside a
log, which the commands write, too."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `mcp`."""
    parser.add_argument(
        "folders", metavar="FOLDER", nargs="*", type=Path, help="a folder of experiments, or of one"
    )
    parser.add_argument("--skill", action="store_true", help="print a skill file for coding agents, and end")


def run(args: argparse.Namespace) -> int:
    """Serve until the client leaves, or print the skill file."""
    if args.skill:
        text = (Path(__file__).parents[2] / "mcp/SKILL.md").read_text(encoding="utf-8")
        for line in text.splitlines():
            print_line(line)
        return 0
    if not args.folders:
        raise InstrumentError("mcp needs FOLDER, a folder of experiments or of one: only its runs are read")
    from sglang_instrument.mcp.questions import Questions
    from sglang_instrument.mcp.readable_runs import ReadableRuns
    from sglang_instrument.mcp.server import server_of

    server_of(Questions(ReadableRuns(args.folders))).run("stdio")
    return 0
