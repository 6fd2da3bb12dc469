"""Turn steps of the generator into what a forecast is asked with."""

import numpy as np

from sglang_instrument.live.history import NOT_YET, PastStep, Requests
from sglang_instrument.testing.simulation.timeline import NEVER

CALLS = {
    "turn_engine_call",
    "tool_execution",
    "interaction_response",
    "reward_calculation",
}


def past_step(played):
    """Return a step of the generator as a follower knows it when it is over."""
    ids, worker, begun, ended, turns, longest = [], [], [], [], [], {}
    for rank, one in enumerate(played.workers):
        own = {}
        for record in one.happened:
            if record.event in CALLS:
                longest[record.event] = max(longest.get(record.event, 0.0), record.end - record.start)
            request_id = (record.extra or {}).get("request_id")
            if record.event == "request_start":
                own[request_id] = [record.end - played.begin, NOT_YET, []]
            elif record.event == "turn_start":
                own[request_id][2].append(record.end - played.begin)
            elif record.event == "async_rollout_request_complete":
                own[request_id][1] = record.end - played.begin
        for request_id, (begin, end, starts) in own.items():
            ids.append(request_id)
            worker.append(rank)
            begun.append(begin)
            ended.append(end)
            turns.append(starts)
    table = np.full((len(ids), max(map(len, turns))), NOT_YET)
    for row, starts in zip(table, turns, strict=True):
        row[: len(starts)] = starts
    requests = Requests(ids, np.array(worker), np.array(begun), np.array(ended), table)
    end_sec = max(one.end for one in played.workers) - played.begin
    return PastStep(requests, end_sec if end_sec < NEVER else NOT_YET, longest)
