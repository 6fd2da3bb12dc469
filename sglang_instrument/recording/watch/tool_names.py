"""Name the tool of an open span, as its fields tell it at entry."""

from typing import Any, Final

_MOST: Final = 4  # tools that one span runs at once
_LONGEST: Final = 64  # characters


def tool_of(extra: dict[str, Any] | None) -> str | None:
    """Return the field `tool`, or the list `tools` as "search, python"; None if a span has neither."""
    if extra is None:
        return None
    tool = extra.get("tool")
    if type(tool) is str:
        return tool[:_LONGEST]
    tools = extra.get("tools")
    if type(tools) is not list:
        return None
    names = [name for name in tools if type(name) is str]
    return ", ".join(names[:_MOST])[:_LONGEST] or None
