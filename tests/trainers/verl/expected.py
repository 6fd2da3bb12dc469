"""List the events and fields of the reference, and those that we log besides.

`docs/reference/events.md` explains the differences; `test_verl.py` compares the logs with these lists.
"""

ORDINARY_TURN = {"request_id", "turn"}

#: The fields of the reference's events, as its hand-edited rollout writes them.
REFERENCE = {
    "total_step_duration": set(),
    "preprocessing_duration": set(),
    "async_generate_duration": set(),
    "sorting_duration": set(),
    "barrier_wait_duration": set(),
    "broadcast_duration": set(),
    "data_extraction_duration": set(),
    "padding_duration": set(),
    "concatenation_duration": set(),
    "batch_construction_duration": set(),
    "cache_flush_duration": set(),
    "final_construction_duration": set(),
    "step_response_length_stats": {
        "response_lengths",
        "actual_response_tokens",
        "response_length_mean",
        "response_length_median",
        "response_length_p80",
        "response_length_p95",
        "response_length_max",
        "response_length_min",
        "requests_over_500",
        "requests_over_1000",
        "batch_size",
    },
    "async_rollout_request_complete": {
        "request_id",
        "batch_data_id",
        "finish_reason",
        "turns",
        "user_turns",
        "turns_with_tools",
        "response_length",
        "actual_response_tokens",
        "total_sequence_length",
        "avg_turn_duration",
        "avg_engine_call_duration",
        "avg_post_process_duration",
        "total_engine_time",
        "total_post_process_time",
        "engine_time_pct",
        "post_process_time_pct",
        "turn_timings",
    },
    "request_start": {"request_id", "initial_prompt_length"},
    "pending_state_handling": {"request_id"},
    "tool_creation_pending_state": {"request_id"},
    "interaction_start_pending_state": {"request_id"},
    "main_loop": {"request_id"},
    "reward_calculation": {"request_id"},
    "finalization": {"request_id"},
    "turn_start": ORDINARY_TURN | {"current_sequence_length"},
    "turn_pre_process": ORDINARY_TURN | {"generation_prompt_length"},
    "turn_engine_call": ORDINARY_TURN | {"generated_tokens", "output_text_length"},
    "engine_generate_setup": {"request_id"},
    "engine_async_generate_actual": {"request_id"},
    "turn_tool_parsing": ORDINARY_TURN | {"raw_tool_calls", "parsed_tool_calls"},
    "turn_post_process": ORDINARY_TURN
    | {"has_tool_calls", "parsed_tool_calls", "finish_reason", "tool_parsing_duration"},
    "turn_end": ORDINARY_TURN
    | {
        "pre_process_duration",
        "engine_call_duration",
        "post_process_duration",
        "tool_parsing_duration",
        "has_tool_calls",
        "finish_reason",
        "engine_call_pct",
        "post_process_pct",
    },
    "tool_calling_state": ORDINARY_TURN,
    "tool_execution": ORDINARY_TURN,
    "tool_response_processing": ORDINARY_TURN,
    "interacting_state": {"request_id", "user_turn", "assistant_turn"},
    "interaction_response": {"request_id", "user_turn", "assistant_turn"},
}

TURN_TIMING = [
    "turn",
    "total_duration",
    "pre_process_duration",
    "engine_call_duration",
    "post_process_duration",
    "tool_parsing_duration",
    "has_tool_calls",
    "finish_reason",
]

#: Fields that we log in addition to the reference's.
ADDED = {
    "async_rollout_request_complete": {"reward", "reward_scores"},
    "turn_engine_call": {"cached_tokens"},
    "turn_post_process": {"output_text_length"},
    "engine_generate_setup": {"turn"},
    "engine_async_generate_actual": {"turn"},
    "tool_execution": {"tools"},
    "interacting_state": {"turn"},
    "interaction_response": {"turn", "reward", "terminated"},
}

#: Fields that only some versions have: (event, field, first version).
ADDED_SINCE = [("async_generate_duration", "aborted_requests", (0, 6, 0))]

#: Fields of the reference that some versions lack: (event, field, first version). From 0.6.0 on the engine
#: answers in token ids by default, and the text is known in `turn_post_process`, where we log its length too.
LACKING_SINCE = [("turn_engine_call", "output_text_length", (0, 6, 0))]

INTERACTION_EVENTS = {"interaction_start_pending_state", "interacting_state", "interaction_response"}

#: Events of the engine itself, from patches/sglang.
ENGINE_EVENTS = {"engine_generate", "engine_request", "engine_tokenize", "engine_send", "engine_wait"}

#: Events of the event loop, which a busy machine may block at any time.
LOOP_EVENTS = {"event_loop_lag", "event_loop_block"}

SINGLE_TURN_EVENTS = {
    "total_step_duration",
    "preprocessing_duration",
    "engine_async_generate",
    "barrier",
    "broadcast_duration",
    "data_extraction_duration",
    "batch_construction_duration",
    "cache_flush_duration",
    *(ENGINE_EVENTS - {"engine_send"}),  # another function sends a list of prompts
}

#: The event that each event is inside.
WITHIN = {
    **dict.fromkeys(
        [event for event in REFERENCE if event.endswith("_duration") and event != "total_step_duration"],
        "total_step_duration",
    ),
    "async_rollout_request_complete": "async_generate_duration",
    "request_start": "async_rollout_request_complete",
    "main_loop": "async_rollout_request_complete",
    "reward_calculation": "async_rollout_request_complete",
    "finalization": "async_rollout_request_complete",
    "log_prob_calculation": "async_rollout_request_complete",
    "pending_state_handling": "main_loop",
    "tool_creation_pending_state": "pending_state_handling",
    "interaction_start_pending_state": "pending_state_handling",
    "turn_end": "main_loop",
    "turn_start": "turn_end",
    "turn_pre_process": "turn_end",
    "turn_engine_call": "turn_end",
    "turn_post_process": "turn_end",
    "turn_tool_parsing": "turn_post_process",
    "engine_generate_setup": "turn_engine_call",
    "engine_async_generate_actual": "turn_engine_call",
    "tool_calling_state": "main_loop",
    "tool_execution": "tool_calling_state",
    "tool_response_processing": "tool_calling_state",
    "interacting_state": "main_loop",
    "interaction_response": "interacting_state",
}


def events(version):
    """Return the multi-turn events of a version."""
    absent = INTERACTION_EVENTS if version < (0, 4, 1) else set()
    return REFERENCE.keys() - absent


def fields(event, version):
    """Return the fields that an event has in a version."""
    since = {field for name, field, first in ADDED_SINCE if name == event and version >= first}
    lacking = {field for name, field, first in LACKING_SINCE if name == event and version >= first}
    return (REFERENCE[event] | ADDED.get(event, set()) | since) - lacking
