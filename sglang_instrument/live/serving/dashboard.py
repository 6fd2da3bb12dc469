"""Return the dashboard for Grafana, which lies beside this file. Grafana asks for a data source."""

from pathlib import Path


def dashboard() -> str:
    """Return the dashboard as JSON."""
    return Path(__file__).with_name("dashboard.json").read_text(encoding="utf-8")
