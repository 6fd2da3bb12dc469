"""Choose the settings that decide most about the speed of a rollout, by the names that trainers use."""

from collections.abc import Sequence
from typing import Final

from sglang_instrument.analysis.settings.recorded import Setting, Value

_TOTALS: Final = ("total_training_steps", "num_rollout", "max_steps", "max_num_steps")
#: What is shown, and the last parts of the names under which engines and trainers have it.
_CHOSEN: Final[dict[str, tuple[str, ...]]] = {
    "tp": ("tp_size", "tensor_model_parallel_size", "rollout_num_gpus_per_engine"),
    "dp": ("dp_size", "data_parallel_size"),
    "memory share": ("mem_fraction_static", "gpu_memory_utilization", "sglang_mem_fraction_static"),
    "running limit": ("max_running_requests", "max_num_seqs", "sglang_max_running_requests"),
    "prefill chunk": ("chunked_prefill_size", "max_num_batched_tokens"),
    "scheduling": ("schedule_policy", "scheduler_policy"),
    "attention": ("attention_backend",),
    "prefix cache off": ("disable_radix_cache",),
    "graphs off": ("disable_cuda_graph", "enforce_eager"),
    "speculation": ("speculative_algorithm",),
    "samples a prompt": (
        "rollout.n",
        "n_samples_per_prompt",
        "num_generations_per_prompt",
        "gconfig.n_samples",
    ),
    "response limit": (
        "max_response_length",
        "rollout.response_length",
        "rollout_max_response_len",
        "max_new_tokens",
        "response_length",
    ),
    "temperature": ("temperature", "rollout_temperature"),
}
_MOST: Final = 10


def main_settings(settings: Sequence[Setting]) -> dict[str, list[Value]]:
    """Return at most ten settings that matter for speed, by a short name.

    Args:
        settings: Those of a run.

    Returns:
        By name the values of all processes, each once, the most frequent first. Without those that are None
        or False everywhere.
    """
    chosen: dict[str, list[Value]] = {}
    for shown in _CHOSEN:
        values = values_of(settings, shown)
        if any(value is not None and value is not False for value in values) and len(chosen) < _MOST:
            chosen[shown] = values
    return chosen


def values_of(settings: Sequence[Setting], name: str) -> list[Value]:
    """Return the values of a setting, each once, the most frequent first; [] if no process has it.

    Args:
        settings: Those of a run.
        name: The short name of a main setting, or the last parts of any name, such as "rollout.n".
    """
    return next(filter(None, (_values_of(settings, last) for last in _CHOSEN.get(name, (name,)))), [])


def total_steps(settings: Sequence[Setting]) -> int | None:
    """Return how many steps a training has by its settings; None if none says it."""
    return first_number(settings, _TOTALS)


def first_number(settings: Sequence[Setting], names: Sequence[str]) -> int | None:
    """Return the value of the first of these settings that is a number above 0."""
    for value in (value for name in names for value in values_of(settings, name)):
        if isinstance(value, int) and value is not True and value > 0:
            return value
    return None


def _values_of(settings: Sequence[Setting], name: str) -> list[Value]:
    """Return the values of a setting whose name ends in these parts, the most frequent first."""
    counts: dict[tuple[str, Value], int] = {}
    for setting in settings:
        if f".{setting.name}".endswith(f".{name}"):
            key = (type(setting.value).__name__, setting.value)  # true is no 1
            counts[key] = counts.get(key, 0) + 1
    return [value for _, value in sorted(counts, key=lambda key: -counts[key])]
