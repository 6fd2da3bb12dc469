"""Read every setting once, from keywords or from SGLANG_INSTRUMENT_<FIELD>, into one frozen Config.

The experiment's name is also read from EXPERIMENT_NAME, which many training scripts set; this package never
sets that variable.
"""

import os
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from msgspec import Struct, structs

from sglang_instrument.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

PREFIX: Final = "SGLANG_INSTRUMENT_"
DEFAULT_EXPERIMENT: Final = "multiturn_log_dir"
_NAME_LIMIT: Final = 230  # bytes; file systems stop at 255, and suffixes are added

Sync = Literal["auto", "always", "events", "off"]
Durability = Literal["buffered", "line"]
Detail = Literal["step", "request", "turn", "all"]
EngineDetail = Literal["off", "requests", "batches"]
FollowerPriority = Literal["idle", "low", "normal"]


class Config(Struct, frozen=True, kw_only=True):
    """The settings of one process: the keywords of `install()`, each also `SGLANG_INSTRUMENT_<NAME>`.

    `install()` describes each of them.
    """

    experiment: str = DEFAULT_EXPERIMENT
    log_dir: str = "logs"
    run_id: str = ""
    role: str = "worker"
    sync: Sync = "auto"
    nvtx: bool = False
    durability: Durability = "buffered"
    detail: Detail = "all"
    engine_detail: EngineDetail = "requests"
    request_header: str = ""
    sample_requests: float = 1.0
    log_error_messages: bool = False
    hang_after_sec: float = 30.0
    open_now_sec: float = 2.0
    memory_limit_mb: int = 64
    patches: tuple[str, ...] = ()
    trainers: tuple[str, ...] = ()
    all_ranks: bool = False
    scalars: bool = False
    follower_priority: FollowerPriority = "idle"
    profile_steps: str = ""
    profile_workers: str = "0"
    profile_options: str = ""
    profile_when: str = ""
    profile_router: str = ""

    @property
    def folder(self) -> "Path":
        """The run's own folder: `log_dir/experiment`."""
        from pathlib import Path

        return Path(self.log_dir) / self.experiment

    def with_run_id(self, run_id: str) -> "Config":
        """Return the same settings for the run `run_id`."""
        return structs.replace(self, run_id=run_id)

    def environment(self) -> dict[str, str]:
        """Return the environment variables from which a child process reads the same settings."""
        return {
            PREFIX + field.name.upper(): _to_text(getattr(self, field.name))
            for field in structs.fields(self)
            if field.name != "role"  # a child has its own role
        }


def given_in(config: Config | None) -> dict[str, object]:
    """Return the fields of `config` that differ from their defaults.

    Raises:
        ConfigError: It is something else than a Config.
    """
    if config is None:
        return {}
    if not isinstance(config, Config):
        wrong = type(config).__name__
        raise ConfigError(f"install() takes keywords or a Config, not a {wrong}: install(experiment='gsm8k')")
    fields = structs.fields(config)
    return {field.name: value for field in fields if (value := getattr(config, field.name)) != field.default}


def load(
    given: Mapping[str, object],
    environment: Mapping[str, str],
    complain: Callable[[str], None],
    written: str = "install({}=...)",
) -> Config:
    """Return the settings: a given one wins over its variable, a variable over the default.

    Args:
        given: Settings by field name, as a person wrote them; None counts as not given.
        environment: The variables to read.
        complain: Is called with a sentence about a variable that has a wrong value. The default then
            stands: a job of a thousand processes must not end by a typing error in its environment.
        written: How a person gives a setting, for errors; `{}` stands for its name.

    Raises:
        ConfigError: A given setting is unknown, or has a value that it cannot have.
    """
    known = {field.name: field for field in structs.fields(Config)}
    unknown = sorted(given.keys() - known.keys())
    if unknown:
        raise ConfigError(
            f"{written.format(unknown[0])}: unknown setting {unknown[0]!r}; settings are {', '.join(known)}"
        )
    values: dict[str, Any] = {}
    for name, field in known.items():
        variable = PREFIX + name.upper()
        if given.get(name) is not None:
            values[name] = _convert(name, field.default, given[name], written.format(name))
        elif environment.get(variable):
            try:
                values[name] = _convert(name, field.default, environment[variable], variable)
            except ConfigError as error:
                complain(f"{error}; the default {field.default!r} is used")
    wanted = values.get("experiment") or environment.get("EXPERIMENT_NAME", DEFAULT_EXPERIMENT)
    values["experiment"] = component(wanted)
    if values["experiment"] != wanted:
        complain(f"experiment {wanted[:300]!r} cannot be a folder's name; {values['experiment']!r} is used")
    if "log_dir" not in values:
        _warn_of_package_cache(complain)
    # Absolute: processes that inherit them have other working directories.
    values["log_dir"] = _absolute(values.get("log_dir", "logs"))
    values["patches"] = tuple(map(_absolute, values.get("patches", ())))
    return Config(**values)


def component(name: str) -> str:
    """Return `name` as one path component that cannot leave its folder.

    Letters of all scripts stay. White space, control characters and ASCII signs other than `.`, `_`, `-`,
    `=`, `+`, `@` and `,` become `_`, leading dots are dropped, and a long name is cut at 230 bytes. A name
    that was changed ends with a hash of the original, so that different names stay different. An empty name,
    or one of dots alone, becomes the default.
    """
    if not name.strip(" ."):
        return DEFAULT_EXPERIMENT
    cleaned = "".join(sign if _may_stay(sign) else "_" for sign in name).lstrip(".")
    if cleaned == name and len(name.encode()) <= _NAME_LIMIT:
        return name
    import zlib  # only here: few names are changed

    end = f"-{zlib.crc32(name.encode(errors='backslashreplace')):08x}"
    shortened = cleaned.encode()[: _NAME_LIMIT - len(end)].decode(errors="ignore")  # whole characters
    return (shortened if shortened.strip("_") else DEFAULT_EXPERIMENT) + end


def _may_stay(sign: str) -> bool:
    """Return whether a character can stand in a folder's name, in a terminal and in a command."""
    if sign.isascii():
        return sign.isalnum() or sign in "._=+@,-"
    return sign.isprintable()


def _warn_of_package_cache(complain: Callable[[str], None]) -> None:
    """Complain where the logs would go into the folder that Ray unpacked for this job, and will delete."""
    folder = os.getcwd()  # noqa: PTH109 - pathlib costs 3 ms
    if "/_ray_pkg_" in folder:
        complain(
            f"log_dir is not set, and the working directory is a package cache that Ray deletes: {folder}; "
            f"set {PREFIX}LOG_DIR to an absolute folder that all nodes share, or call install() in the driver"
        )


def _absolute(path: str) -> str:
    return os.path.abspath(path)  # noqa: PTH100 - pathlib costs 3 ms


def _to_text(value: object) -> str:
    if isinstance(value, bool):
        return str(int(value))
    return os.pathsep.join(value) if isinstance(value, tuple) else str(value)


def _convert(name: str, default: object, value: object, source: str) -> object:
    """Return `value` in the type of the field's default, checked against what the field allows."""
    try:
        converted = _CONVERTERS[type(default)](value)
    except (TypeError, ValueError, OverflowError):
        raise ConfigError(f"{source}: {value!r} is not {_KINDS[type(default)]}") from None
    allowed, rule = _RULES.get(name, (None, ""))
    if allowed is not None and not allowed(converted):
        raise ConfigError(f"{source}: {value!r} is not allowed; it must be {rule}")
    return converted


def _to_bool(value: object) -> bool:
    text = str(value).strip().lower()
    if text not in ("1", "0", "true", "false", "yes", "no", "on", "off", ""):
        raise ValueError(text)
    return text in ("1", "true", "yes", "on")


def _to_str(value: object) -> str:
    """Return a text, a path or a number as text; anything else would become the text of its repr()."""
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise TypeError(value)
    return str(value)


def _to_tuple(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(part for part in value.split(os.pathsep) if part)
    if isinstance(value, os.PathLike):
        return (_to_str(value),)
    if isinstance(value, (bytes, bytearray)):  # which would be a list of numbers
        raise TypeError(value)
    return tuple(map(_to_str, value))  # type: ignore[call-overload]


_CONVERTERS: Final[dict[type, Callable[[Any], Any]]] = {
    bool: _to_bool,
    int: int,
    float: float,
    str: _to_str,
    tuple: _to_tuple,
}


_KINDS: Final[dict[type, str]] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    tuple: "a list of texts",
}


def _one_of(choices: object) -> tuple[Callable[[Any], object], str]:
    names = get_args(choices)
    return names.__contains__, "one of " + ", ".join(map(repr, names))


_NUMBERS: Final = re.compile(r"\s*(\d+(\s*-\s*\d+)?\s*(,\s*|$))*")

_RULES: Final[dict[str, tuple[Callable[[Any], object], str]]] = {
    "sync": _one_of(Sync),
    "durability": _one_of(Durability),
    "detail": _one_of(Detail),
    "engine_detail": _one_of(EngineDetail),
    "follower_priority": _one_of(FollowerPriority),
    "sample_requests": (lambda share: 0 <= share <= 1, "between 0 and 1"),
    "log_dir": (lambda path: "\0" not in path, "a path, without NUL characters"),
    "hang_after_sec": (lambda seconds: 0 < seconds < 1e9, "more than 0 seconds, and less than 1e9"),
    "open_now_sec": (lambda seconds: 0 <= seconds <= 5, "between 0 and 5 seconds"),
    "memory_limit_mb": (lambda size: size > 0, "more than 0 MiB"),
    "profile_steps": (_NUMBERS.fullmatch, "step numbers, like 5-7,20"),
    "profile_workers": (lambda text: text == "all" or _NUMBERS.fullmatch(text), "all, or numbers, like 0-3"),
    "profile_when": (re.compile(r"\s*\w+\s*>\s*[\d.]+\s*(s|sec|min)?\s*").fullmatch, "like request>60s"),
    "request_header": (lambda name: re.fullmatch(r"[A-Za-z0-9_-]*", name), "the name of a header of HTTP"),
    "role": (lambda role: re.fullmatch(r"[a-z][a-z0-9]*", role) is not None, "a lower-case word"),
}
