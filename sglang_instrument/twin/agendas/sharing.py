"""Tell what prompts share: the group's prompt, and of a later turn the sequence so far."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from sglang_instrument.analysis.answers.engine.round_trips import ahead_us
from sglang_instrument.analysis.reading.records.engine_fields import caller_rid, count
from sglang_instrument.analysis.reading.records.fields import Fields
from sglang_instrument.analysis.run.newest_records import newest_records
from sglang_instrument.twin.agendas.planned import AgendaTurn, Sampling
from sglang_instrument.twin.agendas.prefixes import PromptPrefixes, common_tokens, shared_tokens

if TYPE_CHECKING:
    from sglang_instrument.analysis.run.opening import Run

_FULL: Final = 0.01  # of the cache is free: then some of it was evicted
_FIRST_TOKENS: Final = "scheduler_first_tokens"
_RECEIVED: Final = "scheduler_receive"
_FLUSHES: Final = ("cache_flush_duration", "engine_cache_flush")
#: After new weights, a server's cache begins empty.
_UPDATES: Final = ("weights_update",)

Chain = list[dict[str, Any]]


class _CacheFields(Fields, gc=False, omit_defaults=True):
    """What a scheduler logs of its cache, and of where prompts end in it."""

    rids: Any = None
    nodes: Any = None
    kv_tokens: Any = None
    kv_free_pages: Any = None
    kv_page_size: Any = None
    rid: Any = None
    prompt_tokens: Any = None
    prefixes: list[str] | None = None


@dataclass
class Cache:
    """What the log tells of the servers' caches.

    Attributes:
        nodes: By call, the process and the node in which its prompt ended, after its last piece.
        prefixes: By call, the hashes of its prompt's beginnings.
        page_tokens: How many tokens a page holds: hits are multiples of it.
        full_us: When a cache was full.
        flushed_us: When a cache was emptied.
        flushed_steps: Steps with a record of that.
    """

    nodes: dict[str, tuple[str, int]] = field(default_factory=dict)
    prefixes: dict[str, PromptPrefixes] = field(default_factory=dict)
    page_tokens: int = 1
    full_us: list[int] = field(default_factory=list)
    flushed_us: list[int] = field(default_factory=list)
    flushed_steps: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, run: Run) -> Cache:
        """Read it from the records of schedulers and workers."""
        cache, ahead = cls(), ahead_us(run)
        events = (_RECEIVED, _FIRST_TOKENS, "scheduler_admit", *_FLUSHES, *_UPDATES)
        files = [file for file in run.files if file.place is not None]
        for file, line, fields in newest_records(run, files, _CacheFields, events=events):
            if file.place is None or line.start_us is None:
                continue
            moment = line.start_us - ahead.get(file.place.stem, 0)
            if line.event in (*_FLUSHES, *_UPDATES):
                cache.flushed_us.append(moment)
                if file.place.step is not None:
                    cache.flushed_steps.add(file.place.step)
            else:
                cache._take(line.event, file.place.stem, moment, fields)
        cache.full_us.sort()
        cache.flushed_us.sort()
        return cache

    def _take(self, event: str, process: str, moment: int, fields: _CacheFields) -> None:
        size, pages = count(fields.kv_tokens), count(fields.kv_free_pages)
        page = count(fields.kv_page_size) or 1
        if size and pages is not None:
            self.page_tokens = page
            if pages * page < _FULL * size:
                self.full_us.append(moment)
        tokens = count(fields.prompt_tokens)
        if event == _RECEIVED and isinstance(fields.rid, str) and tokens and fields.prefixes:
            self.prefixes[caller_rid(fields.rid)] = PromptPrefixes(tokens, tuple(fields.prefixes))
        if event == _FIRST_TOKENS and isinstance(fields.rids, list) and isinstance(fields.nodes, list):
            for rid, node in zip(fields.rids, fields.nodes, strict=False):
                if isinstance(rid, str) and type(node) is int:
                    self.nodes[caller_rid(rid)] = (process, node)

    def was_full(self, begin_us: int, end_us: int) -> bool:
        """Return whether a cache was full in this time."""
        return _any_between(self.full_us, begin_us, end_us)

    def was_flushed(self, step: int, begin_us: int, first_us: int) -> bool:
        """Return whether a record of the step says so, or a server before the step's first request."""
        return step in self.flushed_steps or _any_between(self.flushed_us, begin_us, first_us)


def _any_between(times: Sequence[int], begin: int, end: int) -> bool:
    place = bisect_left(times, begin)
    return place < len(times) and times[place] <= end


def group_names(chains: Sequence[Chain], cache: Cache) -> list[str]:
    """Return the group of each request: as logged; else by the hashes of its first prompt, or by its node."""
    names = []
    for chain in chains:
        first = chain[0]
        node, prefixes = cache.nodes.get(first["rid"]), cache.prefixes.get(first["rid"])
        if first["group"] is not None:
            names.append(f"g{first['group']}")
        elif prefixes is not None and prefixes.hashes:
            names.append(f"h{prefixes.hashes[-1]}:{prefixes.tokens}")
        elif node is not None:
            names.append(f"{node[0]}:{node[1]}:{first['prompt_tokens']}")
        else:
            names.append(f"r{first['worker']}:{first['name']}")
    return names


def planned_turns(
    chains: Sequence[Chain],
    names: Sequence[str],
    cache: Cache,
    has_evictions: bool,
    sampling: dict[str, Sampling],
) -> tuple[int, list[list[AgendaTurn]]]:
    """Return how many tokens the prompts of all groups share, and the turns of each request."""
    prompts, hits = defaultdict(list), defaultdict(list)
    for chain, name in zip(chains, names, strict=True):
        prompts[name].append(chain[0]["prompt_tokens"])
        hits[name].append(chain[0]["cached_tokens"] or 0)
    # Of the requests of a group, the first finds only what all groups share.
    leading = {name: min(of_group) for name, of_group in hits.items()}
    counts = Counter(hit for hit in leading.values() if hit)
    common = counts.most_common(1)[0][0] if counts else 0
    if has_evictions or len(leading) < 2:
        common = 0
    firsts = {name: cache.prefixes.get(chain[0]["rid"]) for chain, name in zip(chains, names, strict=True)}
    hashed = common_tokens(prompt for prompt in firsts.values() if prompt is not None)
    if not hashed <= common < 2 * hashed:  # a hit has the exact number, if the cache was no obstacle
        common = hashed or common
    turns = []
    for chain, name in zip(chains, names, strict=True):
        shared = min(prompts[name]) if len(prompts[name]) > 1 else min(common, prompts[name][0])
        turns.append(_turns_of(chain, shared, leading[name], cache, has_evictions, sampling))
    return common, turns


def _turns_of(
    chain: Chain,
    shared: int,
    leading: int,
    cache: Cache,
    has_evictions: bool,
    sampling: dict[str, Sampling],
) -> list[AgendaTurn]:
    turns: list[AgendaTurn] = []
    before: dict[str, Any] | None = None
    ended_us = chain[0]["request_start_us"]
    for call in chain:
        if before is not None:
            shared = _shared(before, call, leading, cache, has_evictions)
        turns.append(
            AgendaTurn(
                prompt_tokens=call["prompt_tokens"],
                shared_prefix_tokens=shared,
                generated_tokens=call["completion_tokens"],
                wait_sec=max(0, call["start_us"] - ended_us) / 1e6,
                call_sec=call["call_sec"],
                server=call["server"],
                is_aborted=call["is_aborted"],
                sampling=sampling.get(call["rid"], Sampling()),
                sent_sec=call["sent_sec"],
                returned_sec=call["returned_sec"],
            )
        )
        before, ended_us = call, call["end_us"]
    return turns


def _shared(
    before: dict[str, Any], call: dict[str, Any], leading: int, cache: Cache, has_evictions: bool
) -> int:
    """Return how many tokens of a prompt are the sequence so far.

    All that fits, unless the hashes of both prompts differ, or the server that has the sequence in its cache
    found less of it: then a template dropped a part.
    """
    whole = min(before["prompt_tokens"] + before["completion_tokens"], call["prompt_tokens"])
    hit = call["cached_tokens"] or 0
    prompts = cache.prefixes.get(before["rid"]), cache.prefixes.get(call["rid"])
    if prompts[0] is not None and prompts[1] is not None:
        same, differing = shared_tokens(prompts[0], prompts[1])
        if differing <= before["prompt_tokens"]:  # what comes before the reply was changed
            return hit if same <= hit < differing else same
    stayed = call["server"] == before["server"]
    was_cut = leading < hit < whole - cache.page_tokens
    return hit if stayed and was_cut and not has_evictions else whole
