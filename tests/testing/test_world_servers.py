"""The world's servers keep the laws of SGLang's: tokens, places, the queue's order, the real PrefillAdder."""

from dataclasses import replace
from itertools import pairwise
from random import Random
from types import SimpleNamespace

import pytest

from sglang_instrument.testing.world.serving.admission import Admission, Admitted, NewTokenRatio
from sglang_instrument.testing.world.serving.calls import Call, ServerShape
from sglang_instrument.testing.world.serving.clock import Places, Signal, SimulatedClock, all_of
from sglang_instrument.testing.world.serving.pace import Pace
from sglang_instrument.testing.world.serving.prefix_cache import RadixTree, Segment
from sglang_instrument.testing.world.serving.router import Router
from sglang_instrument.testing.world.serving.scheduler import WorldScheduler

SHAPE = ServerShape(max_running=8, kv_tokens=9000, chunk_tokens=1024, prefill_tokens=4096)


def drawn_calls(seed, count=40, prompt=400, limit=600):
    random = Random(seed)
    calls = []
    for number in range(count):
        question = Segment(f"question {number % 7}", random.randint(20, prompt))
        path = (Segment("system", 100), question, Segment(f"own {number}", random.randint(1, 50)))
        calls.append(Call(f"c{number}", path, f"reply {number}", random.randint(1, limit), limit))
    return calls


def served(shape, calls, gap_sec=0.05):
    """Serve calls that come one after another; return scheduler, records, and tokens over time."""
    clock, records, tokens = SimulatedClock(), [], []

    def log(event, begin, end, extra):
        records.append((event, begin, end, extra))
        tokens.append(scheduler.free + scheduler.cache.evictable + scheduler.cache.locked + held())

    def held():
        stays = [*scheduler.running, *scheduler.waiting, *prefilling]
        return sum({id(call): call.held for call in stays}.values())

    prefilling = calls
    scheduler = WorldScheduler(clock, shape, Pace(), Pace(), log)
    clock.start(scheduler.run())

    def arrive():
        for call in calls:
            scheduler.receive(call)
            yield clock.now + gap_sec
        yield from all_of([call.done for call in calls])

    clock.run(clock.start(arrive()))
    return scheduler, records, tokens


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("caches", [True, False])
def test_each_call_makes_its_tokens_and_gives_all_of_the_cache_back(seed, caches):
    calls = drawn_calls(seed)
    scheduler, _, tokens = served(replace(SHAPE, caches=caches), calls)
    assert [call.made for call in calls] == [call.reply_tokens for call in calls]
    assert all(call.received <= call.admitted < call.first for call in calls)
    assert set(tokens) == {SHAPE.kv_tokens}  # nothing is lost, and nothing comes from nowhere
    assert scheduler.cache.locked == 0
    assert scheduler.free + scheduler.cache.evictable == SHAPE.kv_tokens


@pytest.mark.parametrize("seed", range(4))
def test_the_cache_and_the_batch_are_never_over_their_limits(seed):
    _, records, _ = served(SHAPE, drawn_calls(seed))
    admits = [extra for event, _, _, extra in records if event == "scheduler_admit"]
    assert all(0 <= extra["kv_free_pages"] <= SHAPE.kv_tokens for extra in admits)
    assert all(
        extra["running"] + len(extra["rids"]) <= SHAPE.max_running + 1 for extra in admits
    )  # + a piece
    assert all(extra["tokens"] <= SHAPE.chunk_tokens for extra in admits)
    gauges = [(begin, extra) for event, begin, _, extra in records if event == "scheduler_gauges"]
    assert all(later - earlier > 0.999 for (earlier, _), (later, _) in pairwise(gauges))
    assert all(0 <= extra["kv_free_pages"] <= SHAPE.kv_tokens for _, extra in gauges)


def test_calls_leave_the_queue_in_their_order_unless_they_were_retracted():
    calls = drawn_calls(1)
    served(SHAPE, calls)
    whole = [call for call in calls if not call.retractions]
    assert len(whole) > 20
    assert all(earlier.admitted <= later.admitted for earlier, later in pairwise(whole))


def test_a_full_cache_sends_the_calls_with_the_fewest_tokens_back():
    calls = drawn_calls(2, count=30, prompt=50, limit=2000)
    _, records, _ = served(replace(SHAPE, kv_tokens=6000, conservativeness=0.1, max_running=30), calls)
    retracts = [extra for event, _, _, extra in records if event == "scheduler_retract"]
    assert retracts
    assert sum(call.retractions for call in calls) == sum(len(extra["rids"]) for extra in retracts)
    assert [call.made for call in calls] == [call.reply_tokens for call in calls]


def test_a_later_turn_finds_its_conversation_in_the_cache():
    first = Call("a", (Segment("question", 300),), "reply a", 50, 100)
    path = (Segment("question", 300), Segment("reply a", 49), Segment("end of a", 1), Segment("answer", 80))
    second = Call("b", path, "reply b", 20, 100)
    served(SHAPE, [first, second], gap_sec=5.0)
    assert first.cached_tokens == 0
    assert second.cached_tokens == 349


def test_a_decode_jump_takes_as_long_as_its_decodes_one_by_one():
    scheduler = WorldScheduler(SimulatedClock(), SHAPE, Pace(), Pace(), lambda *record: None)
    scheduler.running = drawn_calls(5, count=6)
    one_by_one = 0.0
    for _ in range(50):
        one_by_one += scheduler._decode_sec(1)
        for call in scheduler.running:
            call.made += 1
    for call in scheduler.running:
        call.made -= 50
    assert scheduler._decode_sec(50) == pytest.approx(one_by_one)
    for steps in (1, 7, 50):
        assert scheduler._steps_in(scheduler._decode_sec(steps)) == steps
        assert scheduler._steps_in(scheduler._decode_sec(steps) - 1e-4) == steps


def test_a_call_that_comes_meanwhile_waits_for_one_decode_at_most():
    long = Call("long", (Segment("q", 10),), "r", 5000, 5000)
    late = Call("late", (Segment("p", 10),), "s", 5, 100)
    served(replace(SHAPE, kv_tokens=20_000), [long, late], gap_sec=3.0)
    assert late.admitted - late.received <= 0.02


def test_a_machine_works_slower_in_a_spell_and_not_at_all_while_it_stands():
    pace = Pace()
    pace.add_spell(10.0, 20.0, 2.0)
    pace.add_spell(30.0, 35.0, float("inf"))
    assert pace.end_of(5.0, 5.0) == 10.0
    assert pace.end_of(5.0, 10.0) == 20.0
    assert pace.end_of(25.0, 10.0) == 40.0
    assert pace.work_in(5.0, 40.0) == pytest.approx(5 + 5 + 10 + 5)


def test_a_pool_hands_its_places_on_in_order():
    clock, pool, order = SimulatedClock(), Places(2), []

    def user(number):
        yield from pool.take()
        order.append((number, clock.now))
        yield clock.now + 1.0
        pool.give_back()

    clock.run(clock.start(all_of([clock.start(user(number)) for number in range(5)])))
    assert order == [(0, 0.0), (1, 0.0), (2, 1.0), (3, 1.0), (4, 2.0)]


def test_a_process_that_nobody_wakes_is_an_error():
    clock = SimulatedClock()

    def stuck():
        yield Signal()

    with pytest.raises(RuntimeError, match="stands still"):
        clock.run(clock.start(stuck()))


@pytest.mark.parametrize("policy", ["sticky", "least_load", "round_robin", "cache_aware"])
def test_a_router_spreads_conversations_and_keeps_them_where_its_policy_says_so(policy):
    router, homes = Router(policy, 3, "seed"), {}
    for turn in range(4):
        for talk in range(30):
            known = 400 * turn
            server = router.choose(0.0, f"t{talk}", f"g{talk // 3}", 300 + known, known)
            homes.setdefault(talk, []).append(server)
    first = [servers[0] for servers in homes.values()]
    assert all(first.count(server) >= 6 for server in range(3))
    if policy in ("sticky", "cache_aware"):
        assert all(len(set(servers)) == 1 for servers in homes.values())


class TestRealScheduler:
    """SGLang's own classes decide as the world's do."""

    def test_the_ratio_of_new_tokens_is_the_real_one(self):
        module = pytest.importorskip("sglang.srt.managers.scheduler_components.new_token_ratio_tracker")
        ours = NewTokenRatio(1.0)
        real = module.NewTokenRatioTracker(
            init=ours.first, min=ours.least, decay=ours.fall, current=ours.first
        )
        for _ in range(700):
            ours.decode(1)
            real.decay_step()
        assert ours.current == pytest.approx(real.current)
        calls = drawn_calls(3, count=9)
        for number, call in enumerate(calls):
            call.made = 10 * number
        params = [SimpleNamespace(max_new_tokens=call.max_new_tokens) for call in calls]
        requests = [
            SimpleNamespace(output_ids=[0] * call.made, sampling_params=param)
            for call, param in zip(calls, params, strict=True)
        ]
        ours.after_retraction(calls)
        assert ours.current == real.estimate_new_token_ratio_after_retract(requests)

    @pytest.mark.parametrize("seed", range(8))
    def test_the_real_prefill_adder_admits_the_same_calls(self, seed, monkeypatch):
        policy = pytest.importorskip("sglang.srt.managers.schedule_policy")
        budget = pytest.importorskip("sglang.srt.mem_cache.prefill_budget")
        random = Random(seed)
        running, waiting = drawn_calls(seed, count=4), drawn_calls(seed + 100, count=20)
        for call in running:
            call.made = random.randint(1, call.reply_tokens)
        free, ratio = random.randint(1000, 7000), random.uniform(0.1, 0.7)
        shape = replace(SHAPE, chunk_tokens=random.choice([1024, 8192]))
        assert real_choice(policy, budget, shape, free, running, waiting, ratio) == our_choice(
            shape, free, running, waiting, ratio
        )


def our_choice(shape, free, running, waiting, ratio):
    """Return whom the world's admission takes, with how many tokens; the cache is empty."""
    admission = Admission(shape, RadixTree(), free, running, ratio)
    for call in waiting:
        if admission.chunked is not None or admission.add(call) is not Admitted.GO_ON:
            break
    return [(call.rid, tokens) for call, tokens in admission.admitted]


def real_choice(policy, budget, shape, free, running, waiting, ratio):
    """Return whom SGLang's PrefillAdder takes; allocator, cache and requests are stand-ins."""
    cache = SimpleNamespace(
        disable=False,
        supports_mamba=lambda: False,
        evictable_size=lambda: 0,
        is_tree_cache=lambda: False,
        inc_lock_ref=lambda node: None,
        dec_lock_ref=lambda node: None,
    )
    allocator = SimpleNamespace(page_size=1, available_size=lambda: free)
    allocator.create_prefill_budget = lambda tree, num_mixed_decode_tokens: budget.PrefillBudget(
        allocator, tree
    )
    adder = policy.PrefillAdder(
        1,
        cache,
        allocator,
        SimpleNamespace(reqs=[real_request(call) for call in running]),
        ratio,
        shape.prefill_tokens,
        shape.chunk_tokens,
    )
    adder._req_inc_lock_ref = lambda request: None
    adder._account_prefill_cache_admission = lambda request, prefix: None
    for call in waiting:
        if adder.new_chunked_req is not None:
            break
        result = adder.add_one_req(real_request(call), has_chunked_req=False, truncation_align_size=None)
        if result is not policy.AddReqResult.CONTINUE:
            break
    return [(request.rid, request.extend_range.length) for request in adder.can_run_list]


def real_request(call):
    """Return what PrefillAdder asks of a request."""
    request = SimpleNamespace(
        rid=call.rid,
        output_ids=[0] * call.made,
        origin_input_ids=[0] * call.prompt_tokens,
        full_untruncated_fill_ids=[0] * call.context,
        prefix_indices=[],
        last_node=None,
        host_hit_length=0,
        swa_host_hit_length=0,
        retracted_stain=False,
        sampling_params=SimpleNamespace(max_new_tokens=call.max_new_tokens, ignore_eos=False),
        kv=SimpleNamespace(holds_mamba=False),
        needs_host_load_back=lambda: False,
    )

    def set_extend_range(begin, end):
        request.extend_range = SimpleNamespace(begin=begin, end=end, length=end - begin)

    request.set_extend_range = set_extend_range
    return request
