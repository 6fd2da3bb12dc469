"""Name the keys, control records, phases and events of the log: the vocabulary of recording and analysis."""

from typing import Final, Literal, NamedTuple, get_args

LOG_VERSION: Final = 1

#: Keys of a record, in the order in which the encoder writes them.
KEYS: Final = (
    "timestamp",
    "event",
    "duration_sec",
    "extra",
    "workid",
    "step",
    "start_us",
    "task",
    "spawned_by",
    "active_sec",
    "device_sec",
    "error",
    "validate",
    "phase",
)

#: Keys of a file in `processes/`: of a process with many workers, only the file of the first has them.
CONFIGURATION: Final = "configuration"
CONFIGURATION_LEFT_OUT: Final = "configuration_left_out"
LOG_OPENED: Final = "log_opened"
STEP_CLOSED: Final = "step_closed"
LOG_CLOSED: Final = "log_closed"
OPEN_SPANS: Final = "open_spans"
OPEN_NOW: Final = "open_now"
OPEN_BLOCK: Final = "open_block"
#: A record of how full a scheduler is, once a second.
SCHEDULER_GAUGES: Final = "scheduler_gauges"
#: A record of a request whose place in the batch another one of a higher priority took.
SCHEDULER_PREEMPT: Final = "scheduler_preempt"
#: A call that a trainer's gateway made for a black-box agent, and the role of such a process.
GATEWAY_CALL: Final = "gateway_call"
GATEWAY_ROLE: Final = "gateway"
#: Roles whose processes cannot know the step; readers place their records by time.
ENGINE_ROLES: Final = frozenset(
    {"server", "scheduler", "tokenizer", "detokenizer", "controller", GATEWAY_ROLE}
)
#: A record of a forward pass, from SGLang's own stream of metrics.
FORWARD_PASS: Final = "forward_pass"  # noqa: S105 - no password
#: Records of a follower in `live/`: what the GPUs of its host are, and what they do, once a second.
GPUS_OPENED: Final = "gpus_opened"
GPU_GAUGES: Final = "gpu_gauges"
#: A record of an event loop that was blocked; `open_block` tells of it while it is.
LOOP_BLOCK: Final = "event_loop_block"
ROLLOUT: Final = "rollout"
CONTROL_EVENTS: Final = frozenset({LOG_OPENED, STEP_CLOSED, LOG_CLOSED, OPEN_SPANS, OPEN_NOW, OPEN_BLOCK})
#: Instant events of a trainer: the samples that it took for training, and those that it threw away.
SAMPLES_CONSUMED: Final = "samples_consumed"
SAMPLES_DROPPED: Final = "samples_dropped"

Phase = Literal[
    "step",
    "request",
    "turn",
    "preprocess",
    "generate",
    "tool",
    "interaction",
    "environment",
    "reward",
    "postprocess",
    "barrier",
    "broadcast",
    "cache",
    "weights",
    "engine",
    "loop",
    "other",
]
PHASES: Final[tuple[Phase, ...]] = get_args(Phase)

#: The watchdog reports spans of these phases that stay open for too long.
WATCHED_PHASES: Final = frozenset(
    {"step", "request", "turn", "tool", "environment", "reward", "barrier", "weights"}
)


class EventKind(NamedTuple):
    """What the vocabulary knows of an event.

    `synced`: a step-level span of synchronous code; the GPU may be synchronised before and after it.
    `instant`: an instant event, which has no duration.
    `reference`: one of the 36 events of the hand-edited verl whose names this log keeps.
    """

    phase: Phase
    synced: bool = False
    instant: bool = False
    reference: bool = True


#: The vocabulary. New names carry no unit (the key `duration_sec` does); the reference's names stay as they
#: are.
EVENTS: Final[dict[str, EventKind]] = {
    # a step of one worker
    "total_step_duration": EventKind("step", synced=True),
    "preprocessing_duration": EventKind("preprocess", synced=True),
    "async_generate_duration": EventKind("generate", synced=True),
    "engine_async_generate": EventKind("generate", synced=True),
    "sorting_duration": EventKind("postprocess"),
    "barrier": EventKind("barrier", synced=True),
    "barrier_wait_duration": EventKind("barrier", synced=True),
    "broadcast_duration": EventKind("broadcast", synced=True),
    "data_extraction_duration": EventKind("postprocess", synced=True),
    "padding_duration": EventKind("postprocess", synced=True),
    "concatenation_duration": EventKind("postprocess", synced=True),
    "batch_construction_duration": EventKind("postprocess", synced=True),
    "cache_flush_duration": EventKind("cache", synced=True),
    "final_construction_duration": EventKind("postprocess", synced=True),
    "step_response_length_stats": EventKind("step", instant=True),
    # a request
    "async_rollout_request_complete": EventKind("request"),
    "request_start": EventKind("request", instant=True),
    "pending_state_handling": EventKind("preprocess"),
    "tool_creation_pending_state": EventKind("environment"),
    "interaction_start_pending_state": EventKind("environment"),
    "main_loop": EventKind("loop"),
    "reward_calculation": EventKind("reward"),
    "finalization": EventKind("postprocess"),
    # a turn
    "turn_start": EventKind("turn", instant=True),
    "turn_end": EventKind("turn"),
    "turn_pre_process": EventKind("preprocess"),
    "turn_engine_call": EventKind("generate"),
    "engine_generate_setup": EventKind("preprocess"),
    "engine_async_generate_actual": EventKind("generate"),
    "turn_post_process": EventKind("postprocess"),
    "turn_tool_parsing": EventKind("postprocess"),
    "tool_calling_state": EventKind("tool"),
    "tool_execution": EventKind("tool"),
    "tool_response_processing": EventKind("postprocess"),
    "interacting_state": EventKind("interaction"),
    "interaction_response": EventKind("interaction"),
    # the engine, as its user calls it
    "engine_generate": EventKind("engine", reference=False),
    "engine_stream": EventKind("engine", reference=False),
    "engine_cache_flush": EventKind("cache", reference=False),
    # inside the engine: the tokenizer manager, the controller, the scheduler, the detokenizer
    "engine_request": EventKind("engine", reference=False),
    "engine_tokenize": EventKind("engine", reference=False),
    "engine_send": EventKind("engine", reference=False),
    "engine_wait": EventKind("engine", reference=False),
    "engine_output": EventKind("engine", reference=False),
    "engine_dispatch": EventKind("engine", reference=False),
    "engine_detokenize": EventKind("engine", reference=False),
    "scheduler_receive": EventKind("engine", reference=False),
    "scheduler_admit": EventKind("engine", reference=False),
    SCHEDULER_GAUGES: EventKind("engine", reference=False),
    "scheduler_first_tokens": EventKind("engine", reference=False),
    "scheduler_retract": EventKind("engine", reference=False),
    SCHEDULER_PREEMPT: EventKind("engine", reference=False),
    "scheduler_abort": EventKind("engine", reference=False),
    "scheduler_finish": EventKind("engine", reference=False),
    # prefill and decode apart: what lies between the two servers
    "scheduler_bootstrap": EventKind("engine", reference=False),
    "scheduler_preallocate": EventKind("engine", reference=False),
    "scheduler_transfer": EventKind("engine", reference=False),
    "scheduler_prebuilt": EventKind("engine", reference=False),
    "scheduler_batch": EventKind("engine", reference=False),
    "scheduler_result": EventKind("engine", reference=False),
    "model_forward": EventKind("engine", reference=False),
    FORWARD_PASS: EventKind("engine", instant=True, reference=False),
    "weights_update": EventKind("weights", reference=False),
    "memory_release": EventKind("weights", reference=False),
    "memory_resume": EventKind("weights", reference=False),
    # trainers whose engines are servers: agent loops, servers, rewards, and the phases of the trainer
    "agent_request": EventKind("request", reference=False),  # of an agent that works for another request
    "request_group": EventKind("loop", reference=False),  # contains requests
    "request_wait": EventKind("other", reference=False),  # until fewer requests are in flight
    "requests_abort": EventKind("postprocess", reference=False),
    "abort_wait": EventKind("postprocess", reference=False),  # until the servers have aborted what is left
    "groups_kept": EventKind("other", instant=True, reference=False),  # cut off, to go on in a later step
    "group_filter": EventKind("postprocess", reference=False),
    "requests_submit": EventKind("preprocess", reference=False),
    "groups_collect": EventKind("loop", reference=False),  # of an asynchronous rollout, for this step
    SAMPLES_CONSUMED: EventKind("other", instant=True, reference=False),
    SAMPLES_DROPPED: EventKind("other", instant=True, reference=False),
    "server_wait": EventKind("generate", reference=False),
    "tool_call": EventKind("tool", reference=False),
    "tool_creation": EventKind("environment", reference=False),
    "tool_release": EventKind("environment", reference=False),
    "environment_setup": EventKind("environment", reference=False),
    "environment_reset": EventKind("environment", reference=False),
    "environment_teardown": EventKind("environment", reference=False),
    "engine_start": EventKind("engine", reference=False),
    "server_generate": EventKind("engine", reference=False),
    GATEWAY_CALL: EventKind("engine", reference=False),
    "generation_pause": EventKind("weights", reference=False),
    "generation_continue": EventKind("weights", reference=False),
    "reward_score": EventKind("reward", reference=False),
    "reward_batch": EventKind("reward", reference=False),
    "reward_request": EventKind("reward", reference=False),  # one call of a reward server over HTTP
    ROLLOUT: EventKind("generate", reference=False),
    "trainer_step": EventKind("step", reference=False),
    "trainer_validate": EventKind("step", reference=False),
    "trainer_generate": EventKind("generate", reference=False),
    "trainer_reward": EventKind("reward", reference=False),
    "trainer_old_log_prob": EventKind("other", reference=False),
    "trainer_ref_log_prob": EventKind("other", reference=False),
    "trainer_values": EventKind("other", reference=False),
    "trainer_advantage": EventKind("other", reference=False),
    "trainer_update_actor": EventKind("other", reference=False),
    "trainer_update_critic": EventKind("other", reference=False),
    "trainer_save_checkpoint": EventKind("other", reference=False),
    # a rollout of the user's own
    "request": EventKind("request", reference=False),
    "turn": EventKind("turn", reference=False),
    "generate": EventKind("generate", reference=False),
    "tool": EventKind("tool", reference=False),
    "reward": EventKind("reward", reference=False),
    # the event loop
    "event_loop_lag": EventKind("loop", instant=True, reference=False),
    "event_loop_block": EventKind("loop", reference=False),
}

REFERENCE_EVENTS: Final = frozenset(name for name, kind in EVENTS.items() if kind.reference)
_OTHER: Final = EventKind("other", reference=False)


def kind_of(event: str) -> EventKind:
    """Return what the vocabulary knows of `event`; an unknown event has the phase "other"."""
    try:
        return EVENTS.get(event, _OTHER)
    except TypeError:  # not hashable: a program may pass anything as a name
        return _OTHER
