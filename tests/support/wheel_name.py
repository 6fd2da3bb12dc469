"""Read the tags in a wheel's name."""

import re


def python_of(wheel):
    """Return the version of Python that a compiled wheel is for, such as "3.11"."""
    major, minor = re.search(r"-cp(\d)(\d+)-", wheel.name).groups()
    return f"{major}.{minor}"
