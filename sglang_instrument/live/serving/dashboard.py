"""Return the Grafana dashboard, which lies beside this file; who imports it chooses the data source."""

from pathlib import Path


def dashboard() -> str:
    """Return the dashboard as JSON."""
    return Path(__file__).with_name("dashboard.json").read_text(encoding="utf-8")
