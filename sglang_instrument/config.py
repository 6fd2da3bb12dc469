"""Read every setting once, from keywords or from SGLANG_INSTRUMENT_<FIELD>, into one frozen Config.

The experiment's name is also read from EXPERIMENT_NAME, which many trainers' scripts set already; we never
set that one, for it is theirs.
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
_NAME_LIMIT: Final = 200  # characters; file systems stop at 255 bytes, and suffixes are added

Sync = Literal["auto", "always", "events", "off"]
Durability = Literal["buffered", "line"]
Detail = Literal["step", "request", "turn", "all"]
EngineDetail = Literal["off", "requests", "batches"]


class Config(Struct, frozen=True, kw_only=True):
    """Settings of one process.

    Attributes:
        experiment: Name of the run's folder; one path component (see `component`).
        log_dir: Folder of all runs, absolute. Default `logs` below the working directory.
        run_id: The run that this process belongs to; made by the driver, inherited by the rest.
        role: What this process is: worker, trainer, reward, server, scheduler ...
        sync: When to call `torch.cuda.synchronize()` around step-level spans: "auto", "always", "off"; or
            "events", which waits for nothing and puts the GPU's own time in `device_sec`.
        nvtx: Whether spans are also NVTX ranges.
        durability: "buffered" (written within 100 ms) or "line" (written before the span's exit returns).
        detail: The finest records that are kept: "step", "request", "turn" or "all".
        engine_detail: What SGLang's own processes record: "off", "requests" (the life of each request), or
            "batches" (each forward pass, too).
        sample_requests: Share of requests whose records are kept, 0 to 1; slow requests are always kept.
        log_error_messages: Whether the text of exceptions is logged beside their type.
        hang_after_sec: Age at which an open span is first logged as `open_spans`.
        memory_limit_mb: Bound of what waits to be written, in MiB; beyond it, new records are dropped.
        patches: Folders with patch tables of one's own, read after the shipped ones.
        trainers: Names of the tables' trainers to patch; empty means all.
        all_ranks: Whether ranks that only follow, of a tensor-parallel group, write files of their own.
        profile_steps: Steps in whose rollout the engines' profilers record, as "5-7,20".
        profile_workers: Of the workers with engines of their own, or of the servers: "0", "0-3", "all".
        profile_options: What they record: "num_steps=20,activities=CPU+GPU" (see docs/how-to/profiling.md).
        profile_when: What is also recorded: "request>60s", at most once in 10 minutes.
        profile_router: Address of the servers' router, where the trainer's own objects do not tell.
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
    sample_requests: float = 1.0
    log_error_messages: bool = False
    hang_after_sec: float = 30.0
    memory_limit_mb: int = 64
    patches: tuple[str, ...] = ()
    trainers: tuple[str, ...] = ()
    all_ranks: bool = False
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
        """Return the variables from which a child process reads these same settings."""
        return {
            PREFIX + field.name.upper(): _to_text(getattr(self, field.name))
            for field in structs.fields(self)
            if field.name != "role"  # a child has a role of its own
        }


def load(
    given: Mapping[str, object], environment: Mapping[str, str], complain: Callable[[str], None]
) -> Config:
    """Return the settings: a keyword wins over its variable, a variable over the default.

    Args:
        given: Settings by field name, as a person wrote them; a None counts as not given.
        environment: The variables to read.
        complain: Is told of a variable that is not usable; the default then stands, for a job of a
            thousand processes shall not die of a typing error in its environment.

    Raises:
        ConfigError: A given setting is unknown, or has a value that it cannot have.
    """
    known = {field.name: field for field in structs.fields(Config)}
    unknown = sorted(given.keys() - known.keys())
    if unknown:
        raise ConfigError(f"install(): unknown setting {unknown[0]!r}; settings are {', '.join(known)}")
    values: dict[str, Any] = {}
    for name, field in known.items():
        variable = PREFIX + name.upper()
        if given.get(name) is not None:
            values[name] = _convert(name, field.default, given[name], f"install({name}=...)")
        elif environment.get(variable):
            try:
                values[name] = _convert(name, field.default, environment[variable], variable)
            except ConfigError as error:
                complain(f"{error}; {field.default!r} is used")
    wanted = values.get("experiment") or environment.get("EXPERIMENT_NAME", DEFAULT_EXPERIMENT)
    values["experiment"] = component(wanted)
    if values["experiment"] != wanted:
        complain(f"experiment {wanted[:80]!r} is no folder name; {values['experiment'][:80]!r} is used")
    if "log_dir" not in values:
        _warn_of_package_cache(complain)
    # Absolute, for the processes that inherit them work elsewhere.
    values["log_dir"] = _absolute(values.get("log_dir", "logs"))
    values["patches"] = tuple(map(_absolute, values.get("patches", ())))
    return Config(**values)


def component(name: str) -> str:
    """Return `name` as one path component that cannot leave its folder.

    Characters other than letters, digits, `.`, `_`, `-`, `=`, `+`, `@` and `,` become `_`, leading dots
    go, a name of nothing else becomes the default, and a long one is cut at 200 characters.
    """
    cleaned = re.sub(r"[^\w.=+@,-]", "_", name, flags=re.ASCII).lstrip(".")[:_NAME_LIMIT]
    return cleaned if cleaned.strip("._") else DEFAULT_EXPERIMENT


def _warn_of_package_cache(complain: Callable[[str], None]) -> None:
    """Say that the logs go where Ray unpacked the job's working directory, and will delete it."""
    folder = os.getcwd()  # noqa: PTH109 - pathlib costs 3 ms
    if "/_ray_pkg_" in folder:
        complain(
            f"no log_dir was given, and this process works in a package cache of Ray's, which Ray deletes: "
            f"{folder}; set {PREFIX}LOG_DIR to an absolute folder that all nodes share, or call install() in "
            "the driver"
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
        raise ConfigError(f"{source}: {value!r} is no {type(default).__name__}") from None
    allowed, rule = _RULES.get(name, (None, ""))
    if allowed is not None and not allowed(converted):
        raise ConfigError(f"{source}: {value!r} is not allowed; it must be {rule}")
    return converted


def _to_bool(value: object) -> bool:
    text = str(value).strip().lower()
    if text not in ("1", "0", "true", "false", "yes", "no", "on", "off", ""):
        raise ValueError(text)
    return text in ("1", "true", "yes", "on")


def _to_tuple(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(part for part in value.split(os.pathsep) if part)
    return tuple(str(part) for part in value)  # type: ignore[attr-defined]


_CONVERTERS: Final[dict[type, Callable[[Any], Any]]] = {
    bool: _to_bool,
    int: int,
    float: float,
    str: str,
    tuple: _to_tuple,
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
    "sample_requests": (lambda share: 0 <= share <= 1, "between 0 and 1"),
    "log_dir": (lambda path: "\0" not in path, "a path, without NUL characters"),
    "hang_after_sec": (lambda seconds: 0 < seconds < 1e9, "more than 0 seconds, and less than 1e9"),
    "memory_limit_mb": (lambda size: size > 0, "more than 0 MiB"),
    "profile_steps": (_NUMBERS.fullmatch, "step numbers, like 5-7,20"),
    "profile_workers": (lambda text: text == "all" or _NUMBERS.fullmatch(text), "all, or numbers, like 0-3"),
    "profile_when": (re.compile(r"\s*\w+\s*>\s*[\d.]+\s*(s|sec|min)?\s*").fullmatch, "like request>60s"),
    "role": (lambda role: re.fullmatch(r"[a-z][a-z0-9]*", role) is not None, "a lower-case word"),
}
