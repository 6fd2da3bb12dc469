"""Keep the settings of the engine and the trainer as numbers, flags and a few known words, never as text.

A setting is a number, a bool or None under any name, or under a name in `WORDS` a string that is a word.
Secrets and paths are strings under other names, or do not read as a word, so they are left out.
"""

import argparse
import enum
import math
import re
import types
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from sglang_instrument.recording.safety.static_lookup import class_entry, entries, stored_attribute
from sglang_instrument.schema import CONFIGURATION, CONFIGURATION_LEFT_OUT

#: Names of settings whose string is a word of the framework, such as a policy, a data type or a backend.
WORDS: Final = frozenset(
    {
        *("adv_estimator", "advantage_estimator", "algo", "algorithm", "attention_backend", "backend"),
        *("cuda_graph_mode", "data_type", "decode_attention_backend", "device", "disaggregation_mode"),
        *("disaggregation_transfer_backend", "dist_backend", "distributed_executor_backend", "dtype"),
        *("eviction_policy", "fp8_gemm_runner_backend", "framework", "grammar_backend"),
        *("hicache_io_backend", "hicache_mem_layout", "hicache_storage_backend"),
        *("hicache_storage_prefetch_policy", "hicache_write_policy", "interaction_mode", "kl_loss_type"),
        *("kl_penalty", "kv_cache_dtype", "lm_head_dtype", "load_balance_method", "load_format"),
        *("loss_agg_mode", "loss_mode", "lr_scheduler_type", "lr_warmup_style", "mamba_ssm_dtype"),
        *("mm_attention_backend", "mode", "model_dtype", "model_impl", "moe_a2a_backend"),
        *("moe_runner_backend", "multi_turn_format", "norm_adv_mode", "offload_policy", "optimizer"),
        *("padding_mode", "param_dtype", "policy", "precision", "prefill_attention_backend"),
        *("priority_scheduling", "quantization", "reduce_dtype", "reward_fn_type", "reward_manager"),
        *("rollout_backend", "rollout_batching_mode", "rollout_mode", "router_policy", "sampling_backend"),
        *("sampling_strategy", "schedule_policy", "scheduler_policy", "scheduler_type"),
        *("speculative_algorithm", "speculative_attention_mode", "staleness_policy", "strategy"),
        *("temperature_schedule", "tokenizer_mode", "torch_dtype", "train_backend", "truncation"),
        *("weight_sync_mode", "weight_transfer_backend"),
    }
)

_MOST_BYTES: Final = 38_000  # of names and values of all objects; the file in `processes/` has 64 kB
_MOST_OF_ONE_BYTES: Final = 26_000  # of one object: a trainer's configuration leaves room for the engine's
_VALUE_BYTES: Final = 12  # of a value, about
_MOST_DEPTH: Final = 12
_MOST_LOOKED_AT: Final = 20_000
_MOST_ITEMS: Final = 16  # of a list
_MOST_KEPT: Final = 8  # objects with different settings
_MOST_READ: Final = 64  # objects: a trainer may make a new one for each step
_LARGEST: Final = 2**53
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
# Segments in one case, or with one capital at the beginning: bfloat16, fp8_e4m3, token-mean, AdamW, EAGLE.
_WORD: Final = re.compile(
    r"(?=.{1,32}$)[A-Za-z](?:[A-Z]?[a-z0-9]*[A-Z]?|[A-Z0-9]*)(?:[_.+-](?:[A-Z]?[a-z0-9]*|[A-Z0-9]*))*"
)
_SECRET_NAME: Final = re.compile(
    r"(?i)(^|[_-])(key|token|secret|passw(or)?d|passphrase|passcode|pwd|pin|credentials?|auth|cookie|dsn|bearer)$"
)
# Prefixes of keys and tokens, long hexadecimal numbers, and segments that go from letters to digits again
# and again.
_SECRET_SHAPE: Final = re.compile(
    r"(?i)^(sk|pk|rk|hf|gh[a-z]|github|glpat|xox[a-z]|akia|asia|eyj|ya29|aiza|wandb|npm|pypi|dop|shpat)[_-]?"
    r"(?=[\w-]*\d)[\w-]{8,}|[0-9a-f]{16,}|(?:[a-z]+[0-9]+){3}"
)
#: What tells classes of configurations: dataclasses, pydantic's models, attrs' classes, or their name.
_MARKS: Final = ("__dataclass_fields__", "__pydantic_fields__", "__attrs_attrs__")
_CONFIGURES: Final = re.compile(r"(Config|Configuration|Args|Arguments|Options|Params|Parameters|Settings)$")


@dataclass
class Settings:
    """The settings of an object.

    Attributes:
        values: The settings by their dotted names.
        left_out: How many settings, and lists and objects as a whole, were over a limit. Texts that may not
            be logged do not count.
        first_left_out: The name of the first of them.
        most_bytes, taken_bytes: How many bytes names and values may take, and do take, about.
    """

    values: dict[str, Any] = field(default_factory=dict)
    left_out: int = 0
    first_left_out: str | None = None
    most_bytes: int = _MOST_OF_ONE_BYTES
    taken_bytes: int = 0

    def add(self, name: str, value: Any) -> None:
        """Keep a setting, unless the file of the process would get too large."""
        size = len(name) + _VALUE_BYTES
        if self.taken_bytes + size > self.most_bytes:
            self.leave_out(name)
        else:
            self.taken_bytes += size
            self.values[name] = value

    def leave_out(self, name: str) -> None:
        """Count what is over a limit."""
        self.left_out += 1
        self.first_left_out = self.first_left_out or name


_configuration: dict[str, Settings] = {}
_read: set[tuple[str, int]] = set()  # name and id of each object


def keep_settings(name: str, settings: Any) -> None:
    """Keep the settings that an object holds under a name; later ones of the same name only if they differ.

    Args:
        name: Such as "server_args".
        settings: A dict, a dataclass, a namespace, an OmegaConf configuration ... or anything else, which has
            none.
    """
    # A trainer hands over the same object in each step.
    if (name, id(settings)) in _read or len(_read) >= _MOST_READ:
        return
    _read.add((name, id(settings)))
    taken = sum(known.taken_bytes for known in list(_configuration.values()))
    read = settings_in(settings, max(0, min(_MOST_OF_ONE_BYTES, _MOST_BYTES - taken)))
    is_known = bool(read.values) and any(read.values == known.values for known in _configuration.values())
    if not (read.values or read.left_out) or is_known or len(_configuration) >= _MOST_KEPT:
        return
    number, free = 1, name
    while free in _configuration:
        number += 1
        free = f"{name}_{number}"
    _configuration[free] = read


def forget_settings() -> None:
    """Forget all settings, as `uninstall()` does."""
    _configuration.clear()
    _read.clear()


def described_configuration() -> dict[str, Any]:
    """Return what the file of a process says of its settings: nothing where none were seen."""
    known = dict(_configuration)  # another thread may add to it
    left_out = {
        name: {"count": settings.left_out, "first": settings.first_left_out}
        for name, settings in known.items()
        if settings.left_out
    }
    values = {name: settings.values for name, settings in known.items() if settings.values}
    return {
        **({CONFIGURATION: values} if values else {}),
        **({CONFIGURATION_LEFT_OUT: left_out} if left_out else {}),
    }


def settings_in(holder: Any, most_bytes: int = _MOST_OF_ONE_BYTES) -> Settings:
    """Return the settings of an object.

    No code of the object runs: its attributes are read as they are stored, without properties. They are read
    level by level, so that a limit costs the deepest settings first.
    """
    settings = Settings(most_bytes=most_bytes)
    level: list[tuple[str, Any]] = [("", holder)]
    seen: set[int] = set()  # configurations may refer to one another in a circle
    looked_at = depth = 0
    while level:
        below: list[tuple[str, Any]] = []
        for path, container in level:
            if id(container) in seen:
                continue
            seen.add(id(container))
            stored = _stored_in(container)
            items = _items(stored)
            looked_at += len(items)
            if len(stored) > _MOST_ITEMS and type(stored) in (list, tuple):
                settings.leave_out(path)
                continue
            if items and (depth == _MOST_DEPTH or looked_at > _MOST_LOOKED_AT):
                settings.leave_out(path)
                continue
            for key, leaf in items:
                name, value = f"{path}.{key}" if path else key, _content(leaf)
                if _is_setting(key, value):
                    settings.add(name, value)
                elif not (issubclass(type(value), str) or _SECRET_NAME.search(key)):
                    below.append((name, value))
        level = below
        depth += 1
    return settings


def _items(stored: Any) -> list[tuple[str, Any]]:
    """Return the names and values of what a container stores; of a list the first ones, by their numbers."""
    if type(stored) in (list, tuple):
        return [(str(number), value) for number, value in enumerate(stored[:_MOST_ITEMS])]
    return [
        (key, value)
        for key, value in list(stored.items())
        if type(key) is str and _NAME.fullmatch(key) and not _SECRET_SHAPE.search(key)
    ]


def _stored_in(holder: Any) -> Any:
    """Return what an object stores as a plain dict, list or tuple; an empty dict if it is no container."""
    kind = type(holder)
    if kind in (list, tuple):
        return holder
    if issubclass(kind, dict):
        return dict(dict.items(holder))
    if _is_omegaconf(kind):
        content = entries(holder).get("_content")
        return content if type(content) in (dict, list) else {}
    if issubclass(kind, msgspec.Struct):  # as SGLang's newer ServerArgs
        slots = {name: stored_attribute(holder, name) for name in kind.__struct_fields__}
        return {**slots, **entries(holder), **_resolved_by_sglang(holder)}
    is_plain = issubclass(kind, (argparse.Namespace, types.SimpleNamespace))
    is_configuration = _CONFIGURES.search(kind.__name__) is not None
    if is_plain or is_configuration or any(class_entry(kind, mark) is not None for mark in _MARKS):
        return entries(holder)
    return {}


def _resolved_by_sglang(server_args: Any) -> dict[str, Any]:
    """Return the values that SGLang 0.5.2x decided on: it leaves the fields as the user gave them."""
    resolved: dict[str, Any] = {}
    decisions = entries(server_args).get("_resolved_overrides")
    for decision in decisions if type(decisions) is list else ():
        if type(decision) is tuple and len(decision) == 2 and type(decision[1]) is dict:  # who, and what
            resolved |= decision[1]
    return resolved


def _content(value: Any) -> Any:
    """Return what an enum or a leaf of OmegaConf holds; anything else as it is."""
    if issubclass(type(value), enum.Enum):  # isinstance() would ask a mock for its class
        return entries(value).get("_value_")
    if _is_omegaconf(type(value)) and "_val" in entries(value):
        return entries(value)["_val"]
    return value


def _is_omegaconf(kind: type) -> bool:
    module = class_entry(kind, "__module__")
    return type(module) is str and module.partition(".")[0] == "omegaconf"


def _is_setting(key: str, value: Any) -> bool:
    """Return whether a value may be logged under its name."""
    if value is None or type(value) is bool:
        return True
    if _SECRET_NAME.search(key):
        return False
    if type(value) is int:
        return abs(value) <= _LARGEST
    if type(value) is float:
        return math.isfinite(value)
    is_word = type(value) is str and key.lower() in WORDS and _WORD.fullmatch(value) is not None
    return is_word and not _SECRET_SHAPE.search(value)
