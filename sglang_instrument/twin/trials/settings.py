"""Turn `--set NAME=VALUE[,VALUE]` into settings to try, each a command, servers and a router."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sglang_instrument.errors import InstrumentError

#: The name of the setting under which the run was recorded.
RECORDED: Final = "as launched"
_SERVERS: Final = "servers"
_ROUTER: Final = "router"
_NONE: Final = "none"
_NAME: Final = re.compile(r"[A-Za-z][\w-]*\Z")
_YES: Final = ("true", "yes", "on", "")


@dataclass(frozen=True)
class TwinSetting:
    """A setting that the twin tries.

    Attributes:
        name: As the person wrote it, such as "max_running_requests=64"; RECORDED is none.
        options: What is added to the command that starts a server.
        servers: How many servers; None is as many as without it.
        router: The policy of the router before them, or "none"; None is as without this setting.
    """

    name: str
    options: tuple[str, ...] = ()
    servers: int | None = None
    router: str | None = None

    def router_before(self, usual: str | None) -> str | None:
        """Return the policy of the router before its servers; None without one."""
        policy = usual if self.router is None else self.router
        return None if policy == _NONE else policy

    @property
    def folder(self) -> str:
        """The name as a part of a folder's name."""
        return re.sub(r"[^\w=.-]+", "_", self.name)


def settings_of(asked: Sequence[str]) -> list[TwinSetting]:
    """Return the settings to try, one for each value; the others of each stay as launched.

    Args:
        asked: "NAME=VALUE[,VALUE]" each. `servers` is a number of servers, `router` a policy of the router
            before them, or "none"; any other name is an option of the command that starts a server.

    Raises:
        InstrumentError: One is no setting, or is asked for twice.
    """
    settings = []
    for text in asked:
        name, equals, values = text.partition("=")
        name = name.lstrip("-").replace("-", "_")
        if not equals or not _NAME.match(name):
            raise InstrumentError(
                f"--set {text!r}: must be NAME=VALUE[,VALUE], as max_running_requests=32,64"
            )
        settings += [_setting(name, value.strip()) for value in values.split(",")]
    names = [setting.name for setting in settings]
    for name in names:
        if names.count(name) > 1:
            raise InstrumentError(f"--set {name}: asked for twice")
    return settings


def _setting(name: str, value: str) -> TwinSetting:
    words = f"{name}={value}"
    if name == _SERVERS:
        if not value.isdecimal() or not 0 < int(value) <= 64:
            raise InstrumentError(f"--set {words}: must be a number of servers from 1 to 64")
        return TwinSetting(words, servers=int(value))
    if name == _ROUTER:
        return TwinSetting(words, router=value)
    option = f"--{name.replace('_', '-')}"
    return TwinSetting(words, (option,) if value.lower() in _YES else (option, value))


def with_options(command: Sequence[str], options: Sequence[str]) -> list[str]:
    """Return a command with options in place of those of the same name."""
    if not options:
        return list(command)
    name = options[0]
    words, skips = [], 0
    for place, word in enumerate(command):
        if skips:
            skips -= 1
        elif word == name:
            following = command[place + 1] if place + 1 < len(command) else "--"
            skips = 0 if following.startswith("--") else 1
        elif not word.startswith(f"{name}="):
            words.append(word)
    return [*words, *options]
