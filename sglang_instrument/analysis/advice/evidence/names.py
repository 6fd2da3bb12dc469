"""Name a setting as its trainer or engine does, with its recorded value."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from sglang_instrument.analysis.settings.recorded import PACKAGES, Setting, Value

_OF_ENGINE: Final = "the start-up hook in the engine's processes records it (SGLANG_INSTRUMENT=1)"
_OF_TRAINER: Final = (
    "the trainer's process records it: install() there, or SGLANG_INSTRUMENT=1 in its environment"
)


class SettingNames(NamedTuple):
    """The names of a setting.

    Attributes:
        last: The last parts of the names under which it is recorded, the best first.
        by_trainer: Its name in each trainer; "" is the name that SGLang has.
        is_engines: Whether it belongs to the engine.
    """

    last: tuple[str, ...]
    by_trainer: dict[str, str]
    is_engines: bool = False


class NamedSetting(NamedTuple):
    """A setting of a run: its name, its value, and what would record it; "" if it is recorded."""

    name: str
    value: Value
    not_recorded: str


NAMES: Final[dict[str, SettingNames]] = {
    "response cap": SettingNames(
        ("max_response_length", "rollout.response_length", "rollout_max_response_len", "max_new_tokens"),
        {
            "verl": "data.max_response_length",
            "slime": "--rollout-max-response-len",
            "miles": "--rollout-max-response-len",
            "areal": "gconfig.max_new_tokens",
            "": "max_new_tokens",
        },
    ),
    "turn cap": SettingNames(
        ("max_assistant_turns", "max_turns", "max_num_turns", "rollout_max_turns"),
        {
            "verl": "actor_rollout_ref.rollout.multi_turn.max_assistant_turns",
            "": "the most turns of a request, in the rollout function",
        },
    ),
    "over-sampling": SettingNames(
        ("over_sampling_batch_size", "over_sample_rate"),
        {
            "slime": "--over-sampling-batch-size",
            "miles": "--over-sampling-batch-size",
            "verl": "actor_rollout_ref.rollout.over_sample_rate",
            "": "samples that are begun beyond those needed",
        },
    ),
    "refill": SettingNames((), {"": "begin of new samples"}),
    "running limit": SettingNames(
        ("max_running_requests", "sglang_max_running_requests", "max_num_seqs"),
        {
            "verl": "actor_rollout_ref.rollout.max_num_seqs",
            "slime": "--sglang-max-running-requests",
            "miles": "--sglang-max-running-requests",
            "areal": "sglang.max_running_requests",
            "": "max_running_requests",
        },
        is_engines=True,
    ),
    "memory": SettingNames(
        (
            "mem_fraction_static",
            "sglang_mem_fraction_static",
            "gpu_memory_utilization",
            "max_total_tokens",
        ),
        {
            "verl": "actor_rollout_ref.rollout.gpu_memory_utilization",
            "slime": "--sglang-mem-fraction-static",
            "miles": "--sglang-mem-fraction-static",
            "areal": "sglang.mem_fraction_static",
            "": "mem_fraction_static",
        },
        is_engines=True,
    ),
    "KV tokens": SettingNames(("max_total_tokens",), {"": "max_total_tokens"}, is_engines=True),
    "schedule policy": SettingNames(("schedule_policy",), {"": "schedule_policy"}, is_engines=True),
    "attention backend": SettingNames(("attention_backend",), {"": "attention_backend"}, is_engines=True),
    "speculation": SettingNames(("speculative_algorithm",), {"": "speculative_algorithm"}, is_engines=True),
    "router": SettingNames(
        ("router_policy", "load_balance_method", "sglang_router_policy"),
        {
            "slime": "--router-policy",
            "miles": "--router-policy",
            "": "the router's --policy",
        },
    ),
    "rewards aside": SettingNames(
        ("launch_reward_fn_async",),
        {"verl": "reward_model.launch_reward_fn_async", "": "when rewards are computed"},
    ),
    "staleness": SettingNames(
        ("staleness_threshold", "max_head_offpolicyness", "max_staleness"),
        {
            "verl": "async_training.staleness_threshold",
            "areal": "rollout.max_head_offpolicyness",
            "": "how many steps the rollout may be ahead",
        },
    ),
    "weight sync": SettingNames(
        ("update_weights_bucket_megabytes", "update_weight_buffer_size", "weight_sync_mode"),
        {
            "verl": "actor_rollout_ref.rollout.update_weights_bucket_megabytes",
            "slime": "--update-weight-buffer-size",
            "miles": "--update-weight-buffer-size",
            "": "how weights are sent",
        },
    ),
}
_TRAINERS: Final = {"verl": "actor_rollout_ref.", "areal": "gconfig.", "slime": "rollout_max_response_len"}


def trainer_of(settings: Sequence[Setting]) -> str:
    """Return the trainer whose settings were recorded: "verl", "slime", "miles", "areal"; "" if none was."""
    packages = {setting.name for setting in settings if setting.source == PACKAGES}
    if "miles" in packages:
        return "miles"
    for trainer, begin in _TRAINERS.items():
        if any(setting.name.startswith(begin) for setting in settings):
            return trainer
    return next((trainer for trainer in _TRAINERS if trainer in packages), "")


def setting_of(settings: Sequence[Setting], key: str) -> NamedSetting:
    """Return a setting of a run.

    Args:
        settings: Those of the run.
        key: One of `NAMES`.
    """
    names, trainer = NAMES[key], trainer_of(settings)
    usual = names.by_trainer.get(trainer, names.by_trainer[""])
    unset: NamedSetting | None = None
    for last in names.last:
        for setting in settings:
            if f".{setting.name}".endswith(f".{last}"):
                if setting.value is not None:
                    return NamedSetting(setting.name, setting.value, "")
                unset = unset or NamedSetting(setting.name, None, "")
    if unset is not None:
        return unset
    if not names.last:
        return NamedSetting(usual, None, "")
    return NamedSetting(usual, None, _OF_ENGINE if names.is_engines else _OF_TRAINER)
