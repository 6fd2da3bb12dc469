"""Define what the engines' profilers record: the fields of their request, limited by default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from sglang_instrument.errors import ConfigError

#: What SGLang's profilers can record; RPD is for ROCm, CUDA_PROFILER starts and stops nsys.
ACTIVITIES: Final = ("CPU", "GPU", "MEM", "CUDA_PROFILER", "RPD", "XPU")
DEFAULT_OUTPUT_DIR: Final = "/tmp/sglang_profile"  # noqa: S108 - the folder that SGLang's own scripts use
DEFAULT_STEPS: Final = 3
#: For captures that a run starts itself, so that no step writes gigabytes by default.
DEFAULT_STEPS_IN_A_RUN: Final = 20
_LONGEST_RANGE: Final = 1_000_000

#: The first version of SGLang whose server knows a field of the request (read from its wheels).
KNOWN_SINCE: Final[dict[str, tuple[int, ...]]] = {
    "output_dir": (0,),
    "num_steps": (0,),
    "activities": (0,),
    "with_stack": (0,),
    "record_shapes": (0,),
    "start_step": (0, 4, 9, 6),
    "profile_by_stage": (0, 4, 9, 6),
    "merge_profiles": (0, 5, 4),
    "profile_prefix": (0, 5, 6),
    "profile_stages": (0, 5, 6),
    "profile_id": (0, 5, 15),
    "detailed_annotations": (0, 5, 19),
}


@dataclass(frozen=True)
class ProfileOptions:
    """What to record. Each field but `output_dir` is as in the engines' request.

    Attributes:
        output_dir: Folder on the engines' machines; each worker writes to its own folder in it.
        num_steps: Forward steps of the engine after which it stops by itself; None records until it is
            stopped, and the trace grows by megabytes a second.
        start_step: Forward step at which it begins; None is now.
        activities: Of `ACTIVITIES`.
        profile_by_stage: Whether prefill and decode get `num_steps` each, and files of their own.
        profile_stages: Only these stages: prefill, decode.
        with_stack: Whether to record Python stacks.
        record_shapes: Whether to record shapes of tensors.
        merge_profiles: Whether to merge the ranks of a worker into one more file.
        profile_prefix: Prefix of the files' names.
        profile_id: Name of the capture; each worker's name is derived from it.
        detailed_annotations: Whether SGLang annotates each step with its load.
    """

    output_dir: str = DEFAULT_OUTPUT_DIR
    num_steps: int | None = DEFAULT_STEPS
    start_step: int | None = None
    activities: tuple[str, ...] | None = None
    profile_by_stage: bool = False
    profile_stages: tuple[str, ...] | None = None
    with_stack: bool | None = None
    record_shapes: bool | None = None
    merge_profiles: bool = False
    profile_prefix: str | None = None
    profile_id: str | None = None
    detailed_annotations: bool = False

    def __post_init__(self) -> None:
        """Refuse values that an engine would accept and then fail on."""
        for name in ("num_steps", "start_step"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"profile: {name} must be at least 1, got {value}")
        unknown = [activity for activity in self.activities or () if activity not in ACTIVITIES]
        if unknown:
            raise ConfigError(f"profile: no activity {unknown[0]!r}; there are {', '.join(ACTIVITIES)}")
        if "/" in (self.profile_prefix or "") or "/" in (self.profile_id or ""):
            raise ConfigError("profile: profile_prefix and profile_id are parts of a file's name, without /")
        if self.profile_by_stage and self.num_steps is None:
            raise ConfigError("profile: profile_by_stage needs num_steps: the engine counts them a stage")

    def body(self, folder: str, profile_id: str) -> dict[str, Any]:
        """Return the request for a worker whose files go to `folder`, without fields that were not set."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        given |= {"output_dir": folder, "profile_id": profile_id}
        lists = {key: list(value) if isinstance(value, tuple) else value for key, value in given.items()}
        return {key: value for key, value in lists.items() if value is not None and value is not False} | (
            {key: False for key in ("with_stack", "record_shapes") if given[key] is False}
        )

    def unknown_to(self, version: str | None) -> list[str]:
        """Return the fields that were set and that this version of SGLang does not know."""
        numbers = version_numbers(version)
        if numbers is None:
            return []
        asked = self.body("", "").keys() - {"profile_id"}  # always set; the folder names the capture, too
        return sorted(name for name in asked if numbers < KNOWN_SINCE[name])

    def with_(self, **changes: Any) -> ProfileOptions:
        """Return these options with `changes`."""
        return replace(self, **changes)


def version_numbers(version: str | None) -> tuple[int, ...] | None:
    """Return 0.5.6.post2 as (0, 5, 6, 2); None if it is no version."""
    if not version or not version[0].isdigit():
        return None
    numbers = []
    for part in version.replace(".post", ".").replace("rc", ".").split("+")[0].split("."):
        digits = "".join(character for character in part if character.isdigit())
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers)


def numbers(text: str) -> frozenset[int]:
    """Return the numbers in text such as `5-7,20`.

    Raises:
        ValueError: The text has another form.
    """
    chosen: set[int] = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        first, dash, last = part.partition("-")
        if not first.strip().isdigit() or (dash and not last.strip().isdigit()):
            raise ValueError(f"{part!r} is no number or range; write 5-7,20")
        low, high = int(first), int(last) if dash else int(first)
        if high < low or high - low > _LONGEST_RANGE:
            raise ValueError(f"{part!r} is empty, or too long")
        chosen.update(range(low, high + 1))
    return frozenset(chosen)


def read_options(text: str | Mapping[str, Any], base: ProfileOptions | None = None) -> ProfileOptions:
    """Return options from `num_steps=20,activities=CPU+GPU,with_stack=0`, or from a mapping.

    Raises:
        ConfigError: A field is unknown, or its value is invalid.
    """
    given = _pairs(text) if isinstance(text, str) else dict(text)
    known = {field.name for field in fields(ProfileOptions)}
    for name in given.keys() - known:
        raise ConfigError(f"profile_options: no field {name!r}; there are {', '.join(sorted(known))}")
    values = {name: _value(name, value) for name, value in given.items()}
    return replace(base or ProfileOptions(), **values)


def _pairs(text: str) -> dict[str, str]:
    pairs = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = part.partition("=")
        if not equals:
            raise ConfigError(f"profile_options: {part!r} must be field=value, separated by commas")
        pairs[name.strip()] = value.strip()
    return pairs


_NUMBERS: Final = ("num_steps", "start_step")
_LISTS: Final = ("activities", "profile_stages")
_TEXTS: Final = ("output_dir", "profile_prefix", "profile_id")


def _value(name: str, value: Any) -> Any:
    try:
        if name in _NUMBERS:
            return int(value) or None  # 0: record until stopped
        if name in _LISTS:
            return tuple(value.split("+") if isinstance(value, str) else value)
        if name in _TEXTS:
            return str(value)
        return {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}[
            str(value).lower()
        ]
    except (ValueError, TypeError, KeyError):
        raise ConfigError(f"profile_options: {name}={value!r} is not a valid value") from None
