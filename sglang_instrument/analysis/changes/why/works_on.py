"""Say on which parts of a step a setting or a version works, by its name."""

from typing import Final

from sglang_instrument.analysis.settings.differences import Difference
from sglang_instrument.analysis.settings.recorded import MACHINE, OURS, PACKAGES

#: What other lengths of the replies explain.
LENGTHS: Final = "lengths of the replies"
QUEUE, PREFILL, DECODE, ENGINE = "queue", "prefill", "decode", "engine"
_IN_ENGINE: Final = (QUEUE, PREFILL, DECODE, ENGINE)
_REQUESTS: Final = (LENGTHS, *_IN_ENGINE, "tool", "interaction", "reward")
_OF_TRAINER: Final = ("between steps", "weights", "broadcast", "barrier", "other", "unaccounted")
#: Stands for all parts.
EVERYTHING: Final = "*"
#: The parts that settings work on, by words in the last part of their name; the first that matches counts.
_WORKS_ON: Final[tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]] = (
    (("log_level", "log_requests", "logger", "wandb", "tensorboard", "project_name", "experiment_name"), ()),
    (("seed", "save_freq", "test_freq", "show_time_cost", "served_model_name", "api_key"), ()),
    (("engine_detail", "detail", "sample_requests", "durability", "stack"), (EVERYTHING,)),
    (("staleness", "offpolicy", "ppo", "micro_batch", "optim", "lr", "grad"), _OF_TRAINER),
    (("response_length", "response_len", "max_new_tokens", "max_tokens"), (LENGTHS, *_IN_ENGINE)),
    (("temperature", "top_p", "top_k", "stop"), (LENGTHS,)),
    (("turns", "max_num_turns"), (*_REQUESTS,)),
    (("batch_size", "n_samples", "num_generations", "rollout.n", "over_sampl"), (EVERYTHING,)),
    (
        ("mem_fraction", "gpu_memory_utilization", "max_total_tokens", "hicache", "kv_cache"),
        (QUEUE, PREFILL, DECODE, ENGINE),
    ),
    (
        ("max_running_requests", "max_num_seqs", "schedule_policy", "conservativeness"),
        (QUEUE, PREFILL, DECODE, ENGINE),
    ),
    (("radix", "prefix_cach", "chunked_prefill", "max_prefill", "batched_tokens"), (QUEUE, PREFILL, ENGINE)),
    (("attention_backend", "sampling_backend", "cuda_graph", "enforce_eager", "compile"), _IN_ENGINE),
    (("speculative", "quantization", "dtype", "overlap"), _IN_ENGINE),
    (("tp_size", "tensor_parallel", "tensor_model_parallel", "dp_size", "ep_size", "pp_size"), _IN_ENGINE),
    (("router", "load_balance"), _IN_ENGINE),
    (("tool", "sandbox"), ("tool", "interaction")),
    (("reward", "rm_"), ("reward", "between steps", "other")),
    (("update_weight", "weight_sync", "bucket"), ("weights", "between steps", "broadcast")),
)
#: The parts that packages work on, by the begin of their name. All others, such as torch, Python and
#: trainers, work on everything.
_PACKAGES: Final[dict[str, tuple[str, ...]]] = {
    **dict.fromkeys(("sglang", "flashinfer", "flash", "triton", "vllm"), _IN_ENGINE),
}
_NO_PART: Final = ("sglang_instrument", "sglang-instrument")


def parts_of_setting(difference: Difference) -> tuple[str, ...] | None:
    """Return the parts of a step that a setting works on: () for none, None if that is not known."""
    name = difference.name.lower()
    if difference.source == MACHINE:
        return (EVERYTHING,)
    if difference.source == PACKAGES:
        if name in _NO_PART:
            return ()
        return next(
            (works_on for begin, works_on in _PACKAGES.items() if name.startswith(begin)), (EVERYTHING,)
        )
    last = ".".join(name.split(".")[-2:])
    matches = (works_on for words, works_on in _WORKS_ON if any(word in last for word in words))
    return next(matches, () if difference.source == OURS else None)
