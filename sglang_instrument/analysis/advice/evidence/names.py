"""Name a setting as the trainer or the engine of a run does, with its recorded value."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from sglang_instrument.analysis.settings.recorded import Setting, Value

_OF_ENGINE: Final = "the start-up hook in the engine's processes records it (SGLANG_INSTRUMENT=1)"
_OF_TRAINER: Final = (
    "the trainer's process records it: install() there, or SGLANG_INSTRUMENT=1 in its environment"
)


class SettingNames(NamedTuple):
    """The names of a setting.

    Attributes:
        usual: What it is called where no process recorded it: SGLang's name, or words.
        last: The last parts of the names that engines and trainers have for it, the best first.
        is_engines: Whether it belongs to the engine.
    """

    usual: str
    last: tuple[str, ...]
    is_engines: bool = False


class NamedSetting(NamedTuple):
    """A setting of a run: its name, its value, and what would record it; "" if it is recorded."""

    name: str
    value: Value
    not_recorded: str


NAMES: Final[dict[str, SettingNames]] = {
    "response cap": SettingNames(
        "max_new_tokens",
        ("max_response_length", "rollout.response_length", "rollout_max_response_len", "max_new_tokens"),
    ),
    "turn cap": SettingNames(
        "the most turns of a request",
        ("max_assistant_turns", "max_turns", "max_num_turns", "rollout_max_turns"),
    ),
    "over-sampling": SettingNames(
        "samples begun beyond those needed",
        ("over_sampling_batch_size", "over_sample_rate"),
    ),
    "refill": SettingNames("begin of new samples", ()),
    "running limit": SettingNames(
        "max_running_requests",
        ("max_running_requests", "sglang_max_running_requests", "max_num_seqs"),
        is_engines=True,
    ),
    "memory": SettingNames(
        "mem_fraction_static",
        ("mem_fraction_static", "sglang_mem_fraction_static", "gpu_memory_utilization"),
        is_engines=True,
    ),
    "KV tokens": SettingNames("max_total_tokens", ("max_total_tokens",), is_engines=True),
    "schedule policy": SettingNames("schedule_policy", ("schedule_policy",), is_engines=True),
    "attention backend": SettingNames("attention_backend", ("attention_backend",), is_engines=True),
    "speculation": SettingNames("speculative_algorithm", ("speculative_algorithm",), is_engines=True),
    "router": SettingNames("the router's --policy", ("router_policy", "load_balance_method")),
    "rewards aside": SettingNames("when rewards are computed", ("launch_reward_fn_async",)),
    "staleness": SettingNames(
        "how many steps the rollout may be ahead",
        ("staleness_threshold", "max_head_offpolicyness", "max_staleness"),
    ),
    "weight sync": SettingNames(
        "how weights are sent",
        ("update_weights_bucket_megabytes", "update_weight_buffer_size", "weight_sync_mode"),
    ),
}


def setting_of(settings: Sequence[Setting], key: str) -> NamedSetting:
    """Return a setting of a run; one that is set, rather than one that is None.

    Of an engine's setting that differs by process, it is the first: `values_by_process` has them all.

    Args:
        settings: Those of the run.
        key: One of `NAMES`.
    """
    names = NAMES[key]
    named = [
        NamedSetting(setting.name, setting.value, "")
        for last in names.last
        for setting in settings
        if f".{setting.name}".endswith(f".{last}")
    ]
    known = next((setting for setting in named if setting.value is not None), named[0] if named else None)
    if known is not None:
        return known
    recorded_by = _OF_ENGINE if names.is_engines else _OF_TRAINER
    return NamedSetting(names.usual, None, recorded_by if names.last else "")


def values_by_process(settings: Sequence[Setting], key: str) -> dict[str, NamedSetting]:
    """Return a setting by the name of the process that recorded it; its value is None where it is not set.

    Args:
        settings: Those of the run.
        key: One of `NAMES`.
    """
    by_process: dict[str, list[Setting]] = {}
    for setting in settings:
        by_process.setdefault(setting.process, []).append(setting)
    known = {process: setting_of(recorded, key) for process, recorded in by_process.items()}
    return {process: setting for process, setting in known.items() if not setting.not_recorded}
