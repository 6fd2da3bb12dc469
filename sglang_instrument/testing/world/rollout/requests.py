"""Play a request: turns of engine calls and tools, a reward; the events are those of verl's agent loop."""

from random import Random
from typing import TYPE_CHECKING, Any, Final

from sglang_instrument.testing.world.rollout.plans import RequestPlan, TurnPlan
from sglang_instrument.testing.world.serving.calls import Call
from sglang_instrument.testing.world.serving.clock import Process, all_of
from sglang_instrument.testing.world.serving.prefix_cache import Segment

if TYPE_CHECKING:
    from sglang_instrument.testing.world.rollout.workers import PlayedWorker
    from sglang_instrument.testing.world.stage import Stage

_ROUTE_SEC: Final = 0.0012  # the load balancer's answer


class PlayedRequest:
    """A request that a worker plays.

    Attributes:
        call: The engine call that runs, if one does.
        stopped: Whether the trainer aborted it.
        tokens, first_version, version: What it made, and the weights of its first and last reply.
    """

    def __init__(
        self, stage: "Stage", worker: "PlayedWorker", plan: RequestPlan, file: str, spawned_by: int = 0
    ) -> None:
        self._stage, self._worker, self._plan, self._file = stage, worker, plan, file
        self.task, self._spawned_by = worker.next_task(), spawned_by
        self._random = Random(f"{stage.shape.seed}/request/{plan.uid}")
        self._path = [
            Segment("system", stage.shape.work.system_tokens),
            Segment(f"question {plan.group}", plan.question_tokens),
        ]
        self._known_tokens = 0
        self.call: Call | None = None
        self.stopped = False
        self.tokens, self._tool_tokens = 0, 0
        self._engine_sec, self._tool_sec = 0.0, 0.0
        self._timings: list[dict[str, Any]] = []
        self.first_version: int | None = None
        self.version = 0

    @property
    def group(self) -> str:
        """Its prompt's group."""
        return self._plan.group

    @property
    def uid(self) -> str:
        """Its name in the logs."""
        return self._plan.uid

    def run(self) -> Process:
        """Play it; return itself."""
        stage, plan, begin = self._stage, self._plan, self._now
        yield from self._pass(0.0004)
        loop = self._now
        yield from self._set_up()
        for number, turn in enumerate(plan.turns):
            yield from self._turn(number, turn)
            if self.stopped:
                break
            if turn.tools:
                yield from self._tools(number, turn)
        self._log("main_loop", loop)
        yield from self._finish()
        stage.seen_version[self._worker.rank] = self.version
        self._log("async_rollout_request_complete", begin, **self._summary())
        return self

    def _set_up(self) -> Process:
        begin = self._now
        yield from self._pass(0.0006)
        sec = self._plan.environment_sec + self._stage.knobs.environment_sec
        if sec:
            yield from self._pass(sec)
            self._log("environment_setup", begin + 0.0006)
        self._log("pending_state_handling", begin, initial_prompt_length=self._plan.question_tokens)

    def _turn(self, number: int, turn: TurnPlan) -> Process:
        begin = self._now
        yield from self._pass(0.0003)
        called, left, place = self._now, turn.tokens, {"turn": number}
        made, reason = 0, "stop"
        while left > 0 and not self.stopped:
            call = yield from self._call(number, left)
            made, left = made + call.made, left - call.made
            reason = call.finish_reason
            if call.aborted and not self._stage.shape.resumes:
                break
        self._engine_sec += self._now - called
        versions = {"first_weight_version": self.first_version, "weight_version": self.version}
        self._log(
            "turn_engine_call", called, **place, generated_tokens=made, finish_reason=reason, **versions
        )
        engine_sec = self._now - called
        if turn.tools and not self.stopped:
            parsed = self._now
            yield from self._pass(0.0005)
            self._log("turn_tool_parsing", parsed, **place, parsed_tool_calls=len(turn.tools))
        self.tokens += made
        self._log(
            "turn_end", begin, **place, has_tool_calls=bool(turn.tools), engine_call_duration=engine_sec
        )
        timing = {"turn": number, "total_duration": self._now - begin, "engine_call_duration": engine_sec}
        self._timings.append(timing)

    def _call(self, number: int, tokens: int) -> Process:
        stage, knobs = self._stage, self._stage.knobs
        rid = f"{self._random.getrandbits(64):016x}"
        place = {"turn": number}
        asked = self._now
        delay_sec = knobs.call_sec.get(self._worker.rank, 0.0)
        yield from self._pass(_ROUTE_SEC)
        server = self._choose()
        if stage.shape.waits_for_servers:
            self._log("server_wait", asked, **place, server=f"replica-{server.number}")
        begin = self._now
        call = Call(rid, tuple(self._path), f"reply {rid}", tokens, stage.shape.work.max_new_tokens)
        self.call = call
        if delay_sec:
            yield from self._pass(delay_sec)
        if not self.stopped:
            yield from server.generate(call)
            yield from self._pass(0.0)
        else:
            call.aborted = True
        self.call = None
        stage.router_done(server)
        self.version = call.weight_version
        if self.first_version is None:
            self.first_version = call.weight_version
        reply = {"generated_tokens": call.made, "finish_reason": call.finish_reason}
        self._log(
            "engine_async_generate_actual",
            begin,
            **place,
            rid=rid,
            **reply,
            weight_version=call.weight_version,
        )
        if call.made > 1:
            self._path.append(Segment(call.reply_key, call.made - 1))
        if call.made:
            self._path.append(Segment(f"end of {rid}", 1))
        self._known_tokens = sum(segment.tokens for segment in self._path)
        return call

    def _choose(self) -> Any:
        tokens = sum(segment.tokens for segment in self._path)
        return self._stage.choose(
            self._worker.rank, self._plan.uid, self._plan.group, tokens, self._known_tokens
        )

    def _tools(self, number: int, turn: TurnPlan) -> Process:
        begin, clock = self._now, self._stage.clock
        yield from self._pass(0.0001)
        executed = self._now
        calls = [clock.start(self._tool(number, name, sec)) for name, sec, _ in turn.tools]
        yield from all_of(calls)
        yield from self._pass(0.0)
        self._tool_sec += self._now - executed
        self._log("tool_execution", executed, turn=number, tools=[name for name, _, _ in turn.tools])
        processed = self._now
        yield from self._pass(0.0004)
        self._log("tool_response_processing", processed, turn=number)
        self._log("tool_calling_state", begin, turn=number)
        tokens = sum(answer for _, _, answer in turn.tools)
        self._path.append(Segment(f"answer {self._plan.uid} {number}", tokens))
        self._tool_tokens += tokens

    def _tool(self, number: int, name: str, sec: float) -> Process:
        stage, knobs, worker = self._stage, self._stage.knobs, self._worker
        task, begin = worker.next_task(), self._now
        lock = worker.lock if worker.rank in knobs.locked else None
        if lock is not None:
            yield from lock.take()
        pool = stage.tool_pools.get(name)
        if pool is not None:
            yield from pool.take()
        sec = stage.tool_seconds(worker.rank, name, sec, self._random)
        yield self._now + sec
        if pool is not None:
            pool.give_back()
        if lock is not None:
            lock.give_back()
        extra = {"request_id": self._plan.uid, "turn": number, "tool": name}
        self._stage.records.add(
            self._file, "tool_call", begin, self._now, extra, task=task, spawned_by=self.task
        )

    def _finish(self) -> Process:
        begin, stage = self._now, self._stage
        yield from self._pass(0.0005)
        if stage.shape.scores_alone and not self.stopped:
            scored = self._now
            yield from stage.score(self._worker.rank, self._plan.reward_sec, self._plan.reward, self._random)
            yield from self._pass(0.0)
            self._log("reward_calculation", scored)
        self._log("finalization", begin, reward=self._plan.reward)

    def _summary(self) -> dict[str, Any]:
        plan = self._plan
        reason = "abort" if self.stopped else "stop"
        return {
            "sample_index": plan.index,
            "rollout_n": plan.member,
            "group": plan.group,
            "turns": len(self._timings),
            "turns_with_tools": sum(bool(turn.tools) for turn in plan.turns[: len(self._timings)]),
            "finish_reason": reason,
            "reward": None if self.stopped else plan.reward,
            "prompt_length": plan.question_tokens + self._stage.shape.work.system_tokens,
            "response_length": self.tokens + self._tool_tokens,
            "actual_response_tokens": self.tokens,
            "total_engine_time": self._engine_sec,
            "total_tool_time": self._tool_sec,
            "first_weight_version": self.first_version,
            "weight_version": self.version,
            "turn_timings": self._timings,
        }

    @property
    def _now(self) -> float:
        return self._stage.clock.now

    def _pass(self, sec: float) -> Process:
        """Let time pass; the event loop of the worker may be blocked when it ends."""
        if sec:
            yield self._now + sec
        until = self._worker.blocked_until(self._now)
        if until > self._now:
            yield until

    def _log(self, event: str, begin: float, **extra: Any) -> None:
        ids = {"request_id": self._plan.uid, **extra}
        first, self._spawned_by = self._spawned_by, None  # type: ignore[assignment]
        self._stage.records.add(self._file, event, begin, self._now, ids, task=self.task, spawned_by=first)
