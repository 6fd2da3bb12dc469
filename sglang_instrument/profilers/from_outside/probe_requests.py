"""Send an engine a few requests, so that it has something to record when no other client uses it."""

from __future__ import annotations

from typing import Any, Final

from sglang_instrument.profilers.http_client import Reply, all_at_once, ask
from sglang_instrument.profilers.identify_engine import EngineIdentity
from sglang_instrument.profilers.workers import EngineWorker

_PROMPT: Final = "Count the stars above the quiet harbour, one after the other, and name each of them. "


def send_probes(
    worker: EngineWorker,
    engine: EngineIdentity,
    *,
    requests: int,
    new_tokens: int,
    timeout_sec: float,
    api_key: str | None = None,
) -> list[Reply]:
    """Send `requests` requests of `new_tokens` tokens each at the same time; return the replies."""
    path, bodies = _bodies(worker, engine, requests, new_tokens, timeout_sec, api_key)
    return all_at_once(
        lambda body: ask("POST", worker.url + path, body=body, timeout_sec=timeout_sec, api_key=api_key),
        bodies,
    )


def _bodies(
    worker: EngineWorker,
    engine: EngineIdentity,
    requests: int,
    new_tokens: int,
    timeout_sec: float,
    api_key: str | None,
) -> tuple[str, list[dict[str, Any]]]:
    # Numbered, so that no prompt hits the prefix cache of another.
    prompts = [f"{number}. {_PROMPT}" for number in range(requests)]
    if engine.kind != "vllm":
        parameters = {"max_new_tokens": new_tokens, "temperature": 0, "ignore_eos": True}
        return "/generate", [{"text": prompt, "sampling_params": parameters} for prompt in prompts]
    served = ask("GET", f"{worker.url}/v1/models", timeout_sec=timeout_sec, api_key=api_key).json()
    models = served.get("data") if isinstance(served, dict) else None
    model = models[0].get("id") if isinstance(models, list) and models else None
    return "/v1/completions", [
        {"model": model, "prompt": prompt, "max_tokens": new_tokens, "temperature": 0, "ignore_eos": True}
        for prompt in prompts
    ]
