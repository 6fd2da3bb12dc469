"""Say for each cause what to look at next, with the command."""

from typing import Final

from sglang_instrument.analysis.verdict.evidence.finding import Finding

_TURNS: Final = "the calls: `turns LOGS{step}{worker}`"
_ENGINE: Final = "`workers LOGS{step}{worker}`, `profile capture{workers}`"
_ONE: Final = "what that call waited for: `requests LOGS --request {request}`"
#: What to look at, by cause; `{step}` and `{worker}` become the command's options.
CAUSES: Final[dict[str, str]] = {
    "hang": "the stack in its last open_spans record says where it waits: `check LOGS`",
    "death": "look at that worker's own output and the host's kernel log (out of memory?); `check LOGS` "
    "lists its last records",
    "missing-file": "`check LOGS` and `status LOGS` say whether that process was reached",
    "stale-samples": "drop them before training, or let fewer requests begin ahead: `staleness LOGS{step}`",
    "group-wait": "cap the tokens of the slowest, or let its group end without it: `staleness LOGS{step} "
    "--groups`",
    "thrown-away": "keep what aborts cut off (partial rollouts), sort out prompts whose groups are filtered, "
    "or over-sample less: `waste LOGS{step}` has the reasons by step",
    "blocked-loop": "move the named code off the event loop, into a thread or process pool; `gaps LOGS` "
    "lists all",
    "standstill": "look at the engine at that time: retractions, a weight update, a paused scheduler; "
    "`gaps LOGS{step}`",
    "cache-lost": "look for a flush, a restart, a router that forgot its servers: "
    "`servers LOGS{step} --over-time`",
    "conversations-moved": "use a cache-aware policy of the router, or pin a conversation to its server; "
    "`servers LOGS{step}`",
    "uneven-servers": "look at the router: its policy, its limits of imbalance, the servers that it knows; "
    "`servers LOGS{step} --over-time`",
    "slow-call": _ONE,
    "slow-calls": f"{_TURNS}; is it one tool, one prompt, one backend?",
    "engine": f"look at its GPU (clock, other processes), queue and cache: {_ENGINE}",
    "tool": f"{_TURNS}; look at what the tools share: a service, a sandbox, a limit of calls at once",
    "interaction": f"{_TURNS}; look at what the interactions share",
    "reward": "look at what the rewards share: a service, a model, a pool; `requests LOGS{step}{worker}`",
    "long-replies": "no fault: a limit of tokens or a partial rollout helps; `lengths LOGS`, `whatif LOGS`",
    "cold-start": "no fault: warm the engine up before it, or leave the step out of averages",
    "trend": "look at what piles up from step to step: compare `events LOGS{step}` with the first step",
    "stale-prefix": "flush the cache with each update (`flush_cache=True`), and look whether the flush "
    "succeeded: requests in flight prevent it; `weights LOGS --lineage` names the calls",
    "wrong-label": "importance weights and staleness rest on these labels: look at where the version is set; "
    "`weights LOGS --lineage` names the replies",
    "aborting-update": "pause in place, or let the rollout go on with what was written; `weights LOGS` shows "
    "each update",
    "slow-update": "look at that server's network, disk and GPU: `weights LOGS --update N` shows its parts",
    "speculation": "update the draft model along with the policy, draft fewer tokens, or switch it off; "
    "`lengths LOGS --speculation`",
    "between-steps": "the trainer decides here: its phases are in trainer_0.jsonl, if its table is on; "
    "`events LOGS{step}`",
    "trainer-waits": "the rollout decides: `loop LOGS --replicas +1` estimates one more server; its long "
    "replies: `lengths LOGS`, its workers: `workers LOGS`",
    "rollout-waits": "the trainer decides, so that more servers save nothing; its parts: `loop LOGS`",
    "exposed-reward": "compute rewards while other requests run, or in more processes at once: `loop LOGS` "
    "has the exposed and the hidden seconds of each step",
}
#: What to look at instead where all workers are concerned.
_OF_ALL: Final[dict[str, str]] = {
    "engine": "look at what the engines share: weights, settings, batch sizes, hosts; `workers LOGS{step}`, "
    "`profile capture`",
    "standstill": "look at the engines at that time: a weight update, a paused scheduler, a shared disk; "
    "`gaps LOGS{step}`",
}
_OUTSIDE: Final = "the event beside the others: `events LOGS{step}{worker}`"


def advice_of(finding: Finding, of_engine: str = "") -> str:
    """Return what to look at next.

    Args:
        finding: The finding.
        of_engine: What the engine's own logs tell to look at, if they do.
    """
    validate = " --validate" if finding.validate else ""
    step = finding.evidence.get("worst_step") if finding.step is None else finding.step
    place = {
        "step": "" if step is None else f" --step {step}{validate}",
        "worker": "" if finding.worker is None else f" --worker {finding.worker}",
        "workers": "" if finding.worker is None else f" --workers {finding.worker}",
        "request": finding.request_id or "",
    }
    usual = CAUSES.get(finding.cause, _OUTSIDE)
    advice = _OF_ALL.get(finding.cause, usual) if finding.scope == "step" else usual
    if of_engine:
        advice = f"{of_engine}; {_ENGINE}"
    return advice.format(**place)
