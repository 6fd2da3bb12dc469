"""Run a command: `python -m sglang_instrument COMMAND ...`."""

import sys

from sglang_instrument.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
