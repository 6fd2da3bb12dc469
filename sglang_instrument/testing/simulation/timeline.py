"""Turn a request into a timeline: the reference's events, nested as the measured code is nested."""

from collections.abc import Sequence
from itertools import count
from typing import Any, Final, NamedTuple

from sglang_instrument.analysis.timing.processor_sharing import Served
from sglang_instrument.testing.simulation.queueing import Caller, SimulatedCall
from sglang_instrument.testing.simulation.workload import PlannedRequest, PlannedTurn

MAIN: Final = 0  # number of the main thread's task
NEVER: Final = float("inf")  # the end of a span that hangs


class Happened(NamedTuple):
    """One record in the making; times are seconds. An instant event happens at its `end`."""

    event: str
    start: float
    end: float
    extra: dict[str, Any] | None
    task: int
    spawned_by: int | None = None
    instant: bool = False
    phase: str | None = None


class ServedCall(NamedTuple):
    """A call that an engine served: what its own processes would log."""

    request_id: str
    turn: int
    prompt_tokens: int
    tokens: int
    start: float
    served: Served


class RequestTimeline:
    """The records of one request that begins at `start`, as an engine serves it.

    Its event loop is blocked during `blocks`. Where something ends meanwhile, such as an engine call, the
    request goes on when the loop does. The engine itself does not wait.

    Attributes:
        happened: Its records, in the order of their ends.
        calls: Its engine calls.
        end: When it was complete; NEVER if it hangs or was not run.
    """

    def __init__(
        self,
        request: PlannedRequest,
        start: float,
        task: int,
        spawned_by: int,
        tasks: "count[int]",
        blocks: Sequence[tuple[float, float]] = (),
    ) -> None:
        """Prepare a request; `tasks` numbers the tasks of its tools."""
        self._request, self._blocks = request, blocks
        self._now = self._start = after_blocks(blocks, start)
        self._task, self._spawned_by, self._tasks = task, spawned_by, tasks
        self._announced = False
        self.happened: list[Happened] = []
        self.calls: list[ServedCall] = []
        self.end = NEVER

    def run(self) -> Caller:
        """Record the request; yield each engine call, and be sent when it was served."""
        request, small = self._request, self._request.small_sec
        self._instant("request_start", initial_prompt_length=request.prompt_tokens)
        loop = self._now
        self._pending(small)
        parts: list[tuple[float, float, float]] = []
        for number, turn in enumerate(request.turns):
            yield from self._turn(number, turn, parts)
            if request.hangs and number == 0:
                return
            self._after_turn(number, turn)
        self._ended("main_loop", loop)
        self._took("reward_calculation", request.reward_sec)
        self._took("finalization", small)
        self._pass(2e-5)
        self._ended("async_rollout_request_complete", self._start, **_summary(request, parts))
        self.end = self._now

    def _pending(self, small: float) -> None:
        start = self._now
        self._pass(1e-5)
        self._took("tool_creation_pending_state", small / 4)
        self._took("interaction_start_pending_state", small / 8)
        self._pass(1e-5)
        self._ended("pending_state_handling", start)

    def _turn(self, number: int, turn: PlannedTurn, parts: list[tuple[float, float, float]]) -> Caller:
        begun, small = self._now, turn.small_sec
        length = self._request.context_tokens(number)
        self._instant("turn_start", turn=number, current_sequence_length=length)
        self._took("turn_pre_process", small / 10, turn=number, generation_prompt_length=length + 3)
        called = self._now
        self._pass(5e-6)
        self._took("engine_generate_setup", small / 20)
        asked = self._now
        served = yield SimulatedCall(asked, length + 3, turn.tokens * turn.pace, turn.extra_sec)
        self.calls.append(
            ServedCall(self._request.request_id, number, length + 3, turn.tokens, asked, served)
        )
        self._now = after_blocks(self._blocks, served.end)
        self._ended("engine_async_generate_actual", asked)
        self._pass(1e-5)
        self._ended("turn_engine_call", called, turn=number, generated_tokens=turn.tokens)
        returned = self._now
        if turn.tools:
            self._pass(small / 10)
            calls = len(turn.tools)
            self._took("turn_tool_parsing", small / 2, turn=number, parsed_tool_calls=calls)
        self._pass(small / 4)
        self._ended("turn_post_process", returned, turn=number, has_tool_calls=bool(turn.tools))
        parts.append((self._now - begun, returned - called, self._now - returned))
        self._pass(5e-6)
        self._ended("turn_end", begun, turn=number, engine_call_duration=returned - called)

    def _after_turn(self, number: int, turn: PlannedTurn) -> None:
        start = self._now
        if turn.tools:
            self._pass(1e-5)
            executed = self._now
            self._pass(2e-5)
            self._tools(number, turn.tools)
            self._pass(1e-5)
            self._ended("tool_execution", executed, turn=number)
            self._took("tool_response_processing", turn.small_sec / 3, turn=number)
            self._ended("tool_calling_state", start, turn=number)
        elif turn.reply_sec is not None:
            self._pass(1e-5)
            turns = {"turn": number, "user_turn": number, "assistant_turn": number + 1}
            self._took("interaction_response", turn.reply_sec, **turns)
            self._pass(turn.small_sec / 5)
            self._ended("interacting_state", start, **turns)

    def _tools(self, number: int, tools: list[tuple[str, float]]) -> None:
        """Run the tools concurrently, each in a task of its own."""
        start = self._now
        for name, sec in sorted(tools, key=lambda tool: tool[1]):
            extra = {"request_id": self._request.request_id, "turn": number, "tool": name}
            self._now = after_blocks(self._blocks, start + sec)
            self.happened.append(
                Happened("tool_call", start, self._now, extra, next(self._tasks), self._task, phase="tool")
            )

    def _pass(self, sec: float) -> None:
        self._now = after_blocks(self._blocks, self._now + sec)

    def _took(self, event: str, sec: float, **extra: Any) -> None:
        start = self._now
        self._pass(sec)
        self._ended(event, start, **extra)

    def _ended(self, event: str, start: float, **extra: Any) -> None:
        self._record(event, start, extra, instant=False)

    def _instant(self, event: str, **extra: Any) -> None:
        self._record(event, self._now, extra, instant=True)

    def _record(self, event: str, start: float, extra: dict[str, Any], instant: bool) -> None:
        spawned_by = None if self._announced else self._spawned_by
        self._announced = True
        ids = {"request_id": self._request.request_id, **extra}
        self.happened.append(Happened(event, start, self._now, ids, self._task, spawned_by, instant))


def after_blocks(blocks: Sequence[tuple[float, float]], time_sec: float) -> float:
    """Return when an event loop with these blocks gets to what happens at a time."""
    for start, end in blocks:
        if start <= time_sec < end:
            return end
    return time_sec


def _summary(request: PlannedRequest, parts: list[tuple[float, float, float]]) -> dict[str, Any]:
    """Return the fields of the request's record; `parts` are total, engine and post-processing seconds."""
    tokens = sum(turn.tokens for turn in request.turns)
    engine_sec = sum(part[1] for part in parts)
    with_tools = sum(bool(turn.tools) for turn in request.turns)
    return {
        "finish_reason": "length" if request.turns[-1].tokens >= request.most_tokens else "stop",
        "turns": len(request.turns),
        "turns_with_tools": with_tools,
        "response_length": tokens + 24 * with_tools,
        "actual_response_tokens": tokens,
        "total_sequence_length": request.prompt_tokens + tokens + 24 * with_tools,
        "total_engine_time": engine_sec,
        "avg_engine_call_duration": engine_sec / len(parts),
        "reward": request.reward,
        "turn_timings": [
            {
                "turn": number,
                "total_duration": total,
                "engine_call_duration": engine,
                "post_process_duration": post,
            }
            for number, (total, engine, post) in enumerate(parts)
        ],
    }
