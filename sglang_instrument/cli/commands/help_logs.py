"""Say what the argument LOGS of the commands can be: `sglang-instrument help logs`."""

from __future__ import annotations

import textwrap

from sglang_instrument.analysis.foreign.registry import FORMATS
from sglang_instrument.cli.plain import say

_OF_OURS = """\
LOGS, which most commands read, is one of these:

    logs/EXPERIMENT   the folder of a run: step_N/worker_R.jsonl and what lies beside them
    logs              the same, if it holds one run
    a dataset         what `export LOGS --parquet FOLDER` wrote
    a log of another project: a file, or the folder that holds it"""


def show() -> int:
    """Print it, with a line for each format of another project's logs."""
    for line in _OF_OURS.splitlines():
        say(line)
    for kind in FORMATS:
        say()
        say(f"        {kind.name}")
        for line in textwrap.wrap(kind.files, 90):
            say(f"            {line}")
    say()
    say("docs/how-to/other-logs.md says what each of them tells.")
    return 0
