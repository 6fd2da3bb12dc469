"""The module of docs/how-to/verl.md that a user names to verl, which imports it in the worker's process."""

import sglang_instrument

sglang_instrument.install()
