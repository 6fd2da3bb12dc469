"""Collect nothing here without a GPU: each process would import PyTorch to learn that there is none."""

from pathlib import Path

#: Of NVIDIA, of AMD, and of Windows for Linux.
DEVICES = ("nvidia[0-9]*", "kfd", "dxg")

collect_ignore_glob = [] if any(list(Path("/dev").glob(name)) for name in DEVICES) else ["test_*.py"]
