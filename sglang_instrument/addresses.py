"""Cut the user and the password from addresses: what is recorded is read by many."""

import re
from typing import Final

# Behind a scheme anything up to the last @ of the host's part; without one, user:password@ at the beginning.
_USER: Final = re.compile(r"(?<=://)[^\s/?#]*@|^[^\s/?#@:]+:[^\s/?#]*@")


def without_user(text: str) -> str:
    """Return text with each `https://user:password@host` in it as `https://host`."""
    return _USER.sub("", text) if "@" in text else text
