"""The screen of `sglang-instrument watch`."""
