"""Stand in for Miles' trackers."""

LOGGED: list[dict] = []


def init_tracking(args, primary=True, **kwargs):
    """Open the trackers."""


def log(args, metrics, step_key):
    """Log numbers of a step."""
    LOGGED.append(metrics)
