"""Call servers of an agenda: without streaming, again where they are busy, and never after they died."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import orjson

from sglang_instrument.errors import InstrumentError
from sglang_instrument.extras import install_extra
from sglang_instrument.twin.playing.call_path import CallPath

try:
    import aiohttp
except ModuleNotFoundError as missing:
    raise InstrumentError(f"the twin needs {missing.name}: {install_extra('twin')}") from missing

if TYPE_CHECKING:
    from sglang_instrument.twin.agendas.planned import Sampling
    from sglang_instrument.twin.agendas.sequences import Ids

_BUSY: Final = (429, 503)
_FIRST_PAUSE_SEC, _LONGEST_PAUSE_SEC = 0.1, 5.0
_FLUSH_SEC: Final = 30.0
_ASKED_SEC: Final = 10.0
_ABORT_SEC: Final = 5.0
_TEMPERATURE: Final = 1.0
#: uvicorn closes connections that are idle for 5 s; one that is just closed would look like a dead server.
_IDLE_SEC: Final = 3.0
#: Of models whose size is not known, ids that any vocabulary has.
_ANY_VOCABULARY: Final = 1000


class TwinError(InstrumentError):
    """A replay cannot go on: a server died, refuses a request, or takes too long."""


class TwinClient:
    """A client of some servers, or of a router before them.

    Args:
        urls: Their addresses.
        timeout_sec: How long a call may take, with the pauses while a server is busy.
    """

    def __init__(self, urls: Sequence[str], timeout_sec: float) -> None:
        self.urls = [url.rstrip("/") for url in urls]
        self.timeout_sec = timeout_sec
        self.retries, self.path = 0, CallPath()
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_SEC)
        self._session = aiohttp.ClientSession(
            connector=connector, timeout=aiohttp.ClientTimeout(total=None), json_serialize=str
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def generate(
        self, url: str, rid: str, prompt: Ids, tokens: int, sampling: Sampling
    ) -> list[dict[str, Any]]:
        """Return the replies of exactly so many tokens to a prompt: one, unless more samples are asked for.

        Raises:
            TwinError: The server died, refuses the prompt, or took longer than the time-out.
        """
        temperature = _TEMPERATURE if sampling.temperature is None else sampling.temperature
        how: dict[str, Any] = {"max_new_tokens": tokens, "temperature": temperature, "ignore_eos": True}
        if sampling.samples > 1:
            how["n"] = sampling.samples
        asking: dict[str, Any] = {"rid": rid, "input_ids": prompt, "sampling_params": how}
        if sampling.logprobs:
            asking["return_logprob"] = True
        body = orjson.dumps(asking, option=orjson.OPT_SERIALIZE_NUMPY)
        asked = f"a call of {len(prompt):,} + {tokens:,} tokens"
        deadline, pause = time.monotonic() + self.timeout_sec, _FIRST_PAUSE_SEC
        while True:
            left = deadline - time.monotonic()
            begun = time.perf_counter()
            try:
                if left <= 0:
                    raise asyncio.TimeoutError
                status, headers, answer = await asyncio.wait_for(self._post(url + "/generate", body), left)
            except asyncio.TimeoutError:
                raise TwinError(f"{url}: {asked} took longer than {self.timeout_sec:g} s") from None
            except aiohttp.ClientError as reason:
                raise TwinError(f"{url}: the server is gone: {type(reason).__name__}: {reason}") from None
            if status == 200:
                decoded = orjson.loads(answer)
                replies = cast("list[dict[str, Any]]", decoded if isinstance(decoded, list) else [decoded])
                self.path.count(time.perf_counter() - begun, replies)
                return replies
            if status not in _BUSY:
                words = answer[:300].decode(errors="replace")
                raise TwinError(f"{url} refuses {asked}: HTTP {status}: {words}")
            self.retries += 1
            await asyncio.sleep(_pause_of(headers, pause))
            pause = min(2 * pause, _LONGEST_PAUSE_SEC)

    async def _post(self, url: str, body: bytes) -> tuple[int, Mapping[str, str], bytes]:
        headers = {"Content-Type": "application/json"}
        async with self._session.post(url, data=body, headers=headers) as reply:
            return reply.status, reply.headers, await reply.read()

    async def _get(self, url: str) -> tuple[int, bytes]:
        async with self._session.get(url) as reply:
            return reply.status, await reply.read()

    async def flush(self) -> None:
        """Empty the caches of all servers.

        Raises:
            TwinError: A server does not do it for 30 s; it does not while it works on other requests.
        """
        for url in self.urls:
            deadline = time.monotonic() + _FLUSH_SEC
            while True:
                try:
                    status, _, answer = await self._post(url + "/flush_cache", b"")
                except aiohttp.ClientError as reason:
                    raise TwinError(f"{url}: the server is gone: {reason}") from None
                if status == 200:
                    break
                if time.monotonic() > deadline:
                    words = answer[:200].decode(errors="replace").strip()
                    raise TwinError(
                        f"{url} does not empty its cache: HTTP {status}: {words}; the twin needs servers "
                        "that no other client uses"
                    )
                await asyncio.sleep(_FIRST_PAUSE_SEC)

    async def abort(self, rids: Iterable[str]) -> None:
        """Abort calls, wherever they are served; servers that are gone do not matter."""
        servers = [server for url in self.urls for server in await self._behind(url)]
        await asyncio.gather(*(self._abort(url, rid) for rid in rids for url in servers))

    async def _abort(self, url: str, rid: str) -> None:
        try:
            await asyncio.wait_for(self._post(url + "/abort_request", orjson.dumps({"rid": rid})), _ABORT_SEC)
        except (aiohttp.ClientError, asyncio.TimeoutError):
            pass

    async def _behind(self, url: str) -> list[str]:
        """Return the servers behind a router, which aborts nothing itself; of a server, its own address."""
        try:
            workers = (await self._ask(url, "/workers")).get("workers")
        except TwinError:
            return [url]
        urls = [worker.get("url") for worker in workers or () if isinstance(worker, dict)]
        return [behind for behind in urls if isinstance(behind, str)] or [url]

    async def limits(self) -> tuple[int | None, int]:
        """Return how many tokens a request may have, and how many tokens the model knows.

        The first is None if no server tells.

        Raises:
            TwinError: A server does not answer.
        """
        contexts, vocabulary = [], _ANY_VOCABULARY
        for url in self.urls:
            models, model = await self._ask(url, "/v1/models"), await self._ask(url, "/get_model_info")
            context = next((served.get("max_model_len") for served in models.get("data") or ()), None)
            if isinstance(context, int):
                contexts.append(context)
            vocabulary = _vocabulary(model.get("model_path")) or vocabulary
        return min(contexts, default=None), vocabulary

    async def _ask(self, url: str, path: str) -> dict[str, Any]:
        try:
            status, text = await asyncio.wait_for(self._get(url + path), _ASKED_SEC)
            answer = orjson.loads(text) if status == 200 else {}
        except (aiohttp.ClientError, asyncio.TimeoutError) as reason:
            words = str(reason) or type(reason).__name__
            raise TwinError(f"{url} does not answer: {words}") from None
        except orjson.JSONDecodeError:
            answer = {}
        return answer if isinstance(answer, dict) else {}


def _pause_of(headers: Mapping[str, str], usual_sec: float) -> float:
    """Return the seconds that a busy server asks to wait, at most some."""
    asked = headers.get("Retry-After", "")
    return min(float(asked), _LONGEST_PAUSE_SEC) if asked.isdecimal() else usual_sec


def _vocabulary(model_path: Any) -> int | None:
    """Return how many tokens a model knows, if its configuration lies on this machine."""
    if not isinstance(model_path, str):
        return None
    try:
        configuration = orjson.loads(Path(model_path, "config.json").read_bytes())
    except (OSError, ValueError):
        return None
    if not isinstance(configuration, dict):
        return None
    text = configuration.get("text_config")
    known = configuration.get("vocab_size") or (text.get("vocab_size") if isinstance(text, dict) else None)
    return known if isinstance(known, int) and known > 1 else None
