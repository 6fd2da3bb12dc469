"""Ask a worker which engine and version it runs, and whether its profiler can be switched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from sglang_instrument.profilers.http_client import Reply, all_at_once, ask

#: Routes on which an engine describes itself: SGLang, SGLang before 0.5.x, vLLM.
_SELF: Final = ("/server_info", "/get_server_info", "/version")
START, STOP = "/start_profile", "/stop_profile"
#: No engine accepts this method on its profiler's routes: 405 means that a route exists, 404 that it does
#: not.
_HARMLESS: Final = "PUT"

VLLM_ADVICE: Final = (
    "start vLLM with --profiler-config "
    '\'{"profiler":"torch","torch_profiler_dir":"/abs/dir","max_iterations":3}\' '
    "(older ones: VLLM_TORCH_PROFILER_DIR=/abs/dir); through a trainer: --vllm-profiler-config"
)
RPC_ADVICE: Final = (
    "set VLLM_RPC_TIMEOUT=1800000 (ms) where vLLM starts, in Ray's runtime_env: writing a trace takes "
    "minutes, and the default of 10 s cuts it off"
)


@dataclass(frozen=True)
class EngineIdentity:
    """What a worker says about itself.

    Attributes:
        kind: sglang, vllm, or empty if unknown.
        version: As the worker writes it; None if it does not say.
        reached: Whether it answered at all.
        words: Why it did not answer.
        routes: The profiler's routes (two) that exist; None if not asked.
        model: The model that it serves.
        ranks: The number of traces that one capture makes: one per tensor-, pipeline- and data-parallel rank.
        facts: All settings that it reported.
    """

    kind: str
    version: str | None
    reached: bool
    words: str
    routes: tuple[str, ...] | None
    model: str | None
    ranks: int | None
    facts: dict[str, Any]

    @property
    def name(self) -> str:
        """Engine and version for people."""
        return " ".join(filter(None, (self.kind, self.version))) or ("?" if self.reached else "-")


def identify(
    url: str, *, timeout_sec: float, api_key: str | None = None, with_routes: bool = False
) -> EngineIdentity:
    """Return what the worker at `url` is; all questions are sent at the same time."""
    questions = [("GET", path) for path in _SELF]
    if with_routes:
        questions += [(_HARMLESS, START), (_HARMLESS, STOP)]
    replies = all_at_once(
        lambda question: ask(question[0], url + question[1], timeout_sec=timeout_sec, api_key=api_key),
        questions,
    )
    return _engine_from(replies, with_routes)


def _engine_from(replies: list[Reply], with_routes: bool) -> EngineIdentity:
    new, old, vllm = replies[:3]
    answers = [reply.json() for reply in (new, old) if reply.ok]
    facts = next((answer for answer in answers if isinstance(answer, dict)), {})
    answered = vllm.json() if vllm.ok else None
    reached = any(reply.status for reply in replies)
    routes = None
    if with_routes and reached:
        replies_by_path = zip((START, STOP), replies[3:], strict=True)
        routes = tuple(path for path, reply in replies_by_path if reply.status not in (0, 404))
    if isinstance(answered, dict) and isinstance(answered.get("version"), str):
        kind, version = "vllm", answered["version"]
    else:
        known = isinstance(facts.get("version"), str) or "internal_states" in facts
        kind, version = ("sglang" if known else ""), facts.get("version")
    return EngineIdentity(
        kind=kind,
        version=version if isinstance(version, str) else None,
        reached=reached,
        words="" if reached else new.words,
        routes=routes,
        model=facts.get("model_path") if isinstance(facts.get("model_path"), str) else None,
        ranks=_ranks(facts),
        facts=facts,
    )


def _ranks(facts: dict[str, Any]) -> int | None:
    sizes = [facts.get(name) for name in ("tp_size", "pp_size", "dp_size")]
    if not isinstance(sizes[0], int):
        return None
    tensor, pipeline, data = (size if isinstance(size, int) and size > 0 else 1 for size in sizes)
    # With data-parallel attention, the data-parallel ranks are among the tensor-parallel ones.
    return tensor * pipeline * (1 if facts.get("enable_dp_attention") else data)
