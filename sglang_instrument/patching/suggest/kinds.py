"""Tell from its name what a call does: does it ask the engine, a tool, a reward, a parser, a simulated user?

Names only suggest. The person who edits the table decides.
"""

from __future__ import annotations

import ast
import re
from typing import Final, Literal

Kind = Literal["engine", "tool", "reward", "parsing", "interaction"]

_ENGINE: Final = re.compile(r"a?(sync_)?_?generate(_async|_stream|_batch)?|a?chat_completions?")
_ENGINE_HOLDER: Final = re.compile(r"engine|llm|server|client|sglang|router|policy|model", re.IGNORECASE)
_ENDPOINT: Final = re.compile(r"/generate\b|chat/completions|/v1/completions")
_ASKED_WITH: Final = frozenset({"generate_url", "payload", "sampling_params"})
_READS: Final = re.compile(
    r"_*(get|has|is|add|build|make|format|update|to|from|log|set|load|register|init|create)_"
)
_PARSING: Final = re.compile(r"(parse|extract|detect)\w*(tool|call|action|stream)|parse_non_stream")
_TOOL: Final = re.compile(
    r"(call|execute|run|use|invoke|exec)\w*tool|tool\w*(call|exec|run)|run_code|exec\w*_code"
)
_TOOL_VERB: Final = re.compile(r"a?(execute|call|run|step|invoke)(_async)?$")
_TOOL_HOLDER: Final = re.compile(r"tool|sandbox|(^|[._])env(s|ironment)?([._]|$)", re.IGNORECASE)
_REWARD: Final = re.compile(r"reward|(^|_)scor(e|ing)(_|$|r)|(^|_)grade|(^|_)verif|(^|_)rm(_|$)|(^|_)judge")
_INTERACTION: Final = re.compile(r"interaction|user_sim|simulated_user|simulator", re.IGNORECASE)
_STARTS: Final = re.compile(r"start|create|init|finali[sz]e|release|close|load")


def dotted(node: ast.AST) -> str:
    """Return the names of a callee, joined by dots; what is no name is left out: `a[b].c()` is `a.c`."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        holder = dotted(node.value)
        return f"{holder}.{node.attr}" if holder else node.attr
    if isinstance(node, ast.Subscript):
        return dotted(node.value)
    return dotted(node.func) if isinstance(node, ast.Call) else ""


def kind_of_call(call: ast.Call) -> Kind | None:
    """Return what a call does by its name, None if the name does not tell."""
    holder, _, name = dotted(call.func).rpartition(".")
    if not name or _READS.match(name):
        return None
    if _INTERACTION.search(f"{holder}.{name}"):
        return None if _STARTS.search(name) else "interaction"
    if asks_engine(call, holder, name):
        return "engine"
    return kind_of_name(name) or ("tool" if _TOOL_VERB.match(name) and _TOOL_HOLDER.search(holder) else None)


def kind_of_name(name: str) -> Kind | None:
    """Return what a function does by its own name: of tools, rewards and parsers only."""
    if _READS.match(name):
        return None
    if _PARSING.search(name):
        return "parsing"
    if _TOOL.search(name):
        return "tool"
    return "reward" if _REWARD.search(name) and not _STARTS.search(name) else None


def asks_engine(call: ast.Call, holder: str, name: str) -> bool:
    """Return whether a call asks an engine or its server for tokens."""
    if _ENGINE.fullmatch(name):
        return True
    if "generate" in name and _ENGINE_HOLDER.search(holder) and not name.endswith(("sequences", "prompt")):
        return True
    if name == "create" and "completions" in holder:
        return True
    if name not in ("post", "request"):
        return False
    texts = (
        node.value
        for node in ast.walk(call)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    given = {dotted(argument) for argument in (*call.args, *(keyword.value for keyword in call.keywords))}
    return any(map(_ENDPOINT.search, texts)) or bool(given & _ASKED_WITH) or _has_sampling_params(call)


def _has_sampling_params(call: ast.Call) -> bool:
    return any(isinstance(node, ast.Constant) and node.value == "sampling_params" for node in ast.walk(call))
