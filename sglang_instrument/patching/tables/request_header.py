"""Read the header of HTTP with which a gateway names the rollout's request: the setting `request_header`."""

from typing import Any

_name = ""


def use_request_header(name: str) -> None:
    """Read this header from now on; "" reads none."""
    global _name
    _name = name


def named_header(headers: Any) -> Any:
    """Return the header that the setting names.

    Raises:
        KeyError: The headers lack it, or no header is named.
    """
    if not _name:
        raise KeyError("request_header")
    return headers[_name]
