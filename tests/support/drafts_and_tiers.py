"""Stand in for what needs a GPU in SGLang: drafted tokens, a cache in tiers, and events of CUDA.

SGLang's own scheduler and output streamer then tell of them as they do on a GPU. The numbers follow from the
request: a test can tell what they should be.
"""

import time

DRAFTED = 3  # tokens a verification
HOST_TOKENS = 2  # of each cached prefix, at most
STORAGE_TOKENS = 1


def verifications(reply_tokens: int) -> int:
    """Return how many passes of the model check the drafts of a reply."""
    return -(-reply_tokens // DRAFTED)


def pretend() -> None:
    """Let each request have drafts and tiers, and time forward passes by the clock of the CPU."""
    import torch
    from sglang.srt.managers.scheduler_components import output_streamer
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    torch.cuda.Event = _Event  # type: ignore[misc, assignment]
    accumulator = output_streamer._GenerationStreamAccumulator
    accept, finish = accumulator.accept, output_streamer.SchedulerOutputStreamer.__post_init__

    def accept_with_drafts(self, *, req):  # type: ignore[no-untyped-def]
        req.spec_verify_ct = verifications(len(req.output_ids))
        req.cached_tokens_host = min(HOST_TOKENS, req.cached_tokens)
        req.cached_tokens_storage = min(STORAGE_TOKENS, req.cached_tokens - req.cached_tokens_host)
        accept(self, req=req)

    def finish_with_drafts(self):  # type: ignore[no-untyped-def]
        finish(self)
        self.spec_algorithm = SpeculativeAlgorithm.NGRAM

    accumulator.accept = accept_with_drafts
    output_streamer.SchedulerOutputStreamer.__post_init__ = finish_with_drafts


class _Event:
    """An event of CUDA, without a stream: it has happened when it is recorded."""

    def __init__(self, enable_timing: bool = False) -> None:
        self._recorded = 0.0

    def record(self, stream: object = None) -> None:
        self._recorded = time.perf_counter()

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: "_Event") -> float:
        return (end._recorded - self._recorded) * 1e3
