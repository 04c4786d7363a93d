"""The path of a call, shared by all endpoints that run a model: key, credit, deployment, pipeline,
media, runtime, and clients that disconnect.
"""

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Coroutine
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Protocol, TypeVar

import msgspec
from fastapi import Header, Request, Response
from fastapi.routing import APIRoute

from stoker.base.config import Settings
from stoker.base.errors import (
    ConflictError,
    EndpointNotSupportedError,
    ForbiddenError,
    ModelLoadingError,
    NotFoundError,
)
from stoker.media.collect import Request as MediaRequest
from stoker.models.tasks.registry import endpoints
from stoker.platform.web.context import Platform, part, part_of
from stoker.platform.web.dependencies import made
from stoker.platform.web.http import ClientGoneError
from stoker.platform.web.principal import Principal, Scope
from stoker.registry.deployments import traffic
from stoker.registry.deployments.directory import Directory, Entry
from stoker.runtime.interface import KEEP_ALIVE, Call, OnProgress
from stoker.tenancy.keys.auth import ModelCaller, on_behalf
from stoker.tenancy.usage.balances import Credits
from stoker.wire.generation_request import Generation

T = TypeVar("T")

VERSION = "x-stoker-version"
"""Header. In a request, the version that must answer; in a response, the version that answered."""
RETRY_AFTER_S = 2.0
LONGEST_COPIED = 4 << 20
"""Maximum bytes of a streamed answer that is kept until its end for comparison with a mirror's
answer.
"""

_WAIT = re.compile(r'\s*wait\s*=\s*"?([0-9]{1,9})"?\s*(;.*)?', re.IGNORECASE)

Prefer = Annotated[
    str | None,
    Header(
        description="`wait=N`: how long to wait for a cold deployment, seconds (RFC 7240). "
        "Other preferences, and what is none, are ignored, as that says.",
    ),
]


class Asked(Protocol):
    """A request's body."""

    @property
    def model(self) -> str | None: ...


class Mirror(Protocol):
    def __call__(
        self,
        entry: Entry,
        live_id: str,
        call: Call | Generation,
        answer: bytes,
        seconds: float,
        /,
        *,
        is_streamed: bool = False,
    ) -> None: ...


ChooseVersion = Callable[[Entry], str]
"""Returns the id of the version that answers a call."""


def live_version(entry: Entry) -> str:
    return entry.version_id


@dataclass(frozen=True, kw_only=True)
class Calls(Platform):
    """The only way to run a model, for any caller: HTTP requests, agents and jobs.

    Only this class knows when a call must wait for a change of versions, which adapter it needs,
    and which answers are mirrored.
    """

    directory: Directory
    credits: Credits
    mirror: Mirror | None = None
    """Receives answered calls of deployments that have mirrors."""

    async def target(
        self, caller: Principal, model: str | None, pipelines: Collection[str]
    ) -> Entry:
        """Returns the deployment that is called.

        Raises `EndpointNotSupportedError` if it serves none of these pipelines, and the errors of
        `Directory.resolve`.
        """
        entry = await self.directory.resolve(caller, model)
        if entry.is_stopped:
            raise ConflictError(
                f"The deployment '{entry.model}' is stopped: start it first.",
                code="deployment_stopped",
            )
        if entry.pipeline not in pipelines:
            paths = ", ".join(endpoints(entry.pipeline)) or "none of this server"
            raise EndpointNotSupportedError(
                f"Endpoint not supported: '{entry.model}' is deployed for {entry.pipeline}, "
                f"served by {paths}."
            )
        return entry

    async def run(
        self,
        entry: Entry,
        call: Call | Generation,
        choose: ChooseVersion = live_version,
        *,
        wait_s: float,
        timeout_s: float | None = None,
        on_progress: OnProgress | None = None,
        is_mirrored: bool = False,
    ) -> bytes:
        """Returns the answer of one version of a deployment: see `Runtime.call`.

        Waits while a version makes room for another. Applies the deployment's adapter.

        Args:
            timeout_s: time limit of the answer. None means the server's limit for inference.
            is_mirrored: True offers the answer to the deployment's mirrors.

        Raises `ModelLoadingError` if the change of versions takes longer than the wait, and the
        errors of `choose` and `Runtime.call`.
        """
        wait_s = await self._until_released(entry, wait_s)
        version_id = choose(self._current(entry))
        began = time.perf_counter()
        content = await self.runtime.call(
            version_id,
            _adapted(entry, call),
            wait_s=wait_s,
            timeout_s=timeout_s or self.settings.inference_timeout_s,
            on_progress=on_progress,
        )
        if is_mirrored and entry.mirrors and self.mirror:
            self.mirror(entry, version_id, call, content, time.perf_counter() - began)
        return content

    def stream(
        self,
        entry: Entry,
        call: Call | Generation,
        choose: ChooseVersion = live_version,
        *,
        wait_s: float,
        timeout_s: float | None = None,
        keep_alive: bytes = KEEP_ALIVE,
        is_mirrored: bool = False,
    ) -> AsyncGenerator[bytes]:
        """Yields the answer in parts: see `Runtime.stream` and `run`.

        Args:
            timeout_s: the longest silence. None means the server's limit for inference.

        Raises the errors of `choose` at once, unless the call waits for a change of versions.
        """
        call = _adapted(entry, call)

        def begin(wait_s: float) -> AsyncGenerator[bytes]:
            version_id = choose(self._current(entry))
            parts = self.runtime.stream(
                version_id,
                call,
                wait_s=wait_s,
                timeout_s=timeout_s or self.settings.inference_timeout_s,
                keep_alive=keep_alive,
            )
            if is_mirrored and entry.mirrors and self.mirror:
                return _offered(parts, partial(self.mirror, entry, version_id, call))
            return parts

        async def begin_later() -> AsyncGenerator[bytes]:
            remaining_s = await self._until_released(entry, wait_s)
            async with aclosing(begin(remaining_s)) as parts:
                async for part in parts:
                    yield part

        return begin_later() if self.directory.held(entry) else begin(wait_s)

    def _current(self, entry: Entry) -> Entry:
        """Returns the entry of the same deployment as it is now: it may have changed while media
        were fetched.
        """
        return self.directory.find(entry.deployment_id) or entry

    async def _until_released(self, entry: Entry, wait_s: float) -> float:
        """Waits until no version makes room for another. Returns the rest of the wait in seconds.

        Raises `ModelLoadingError` if that takes longer than the wait.
        """
        released = self.directory.held(entry)
        if released is None:
            return wait_s
        began = time.monotonic()
        try:
            await asyncio.wait_for(released.wait(), wait_s)
        except TimeoutError:
            raise ModelLoadingError(
                f"'{entry.model}' is being changed to another version. Try again later.",
                retry_after_s=RETRY_AFTER_S,
            ) from None
        return max(0.0, wait_s - (time.monotonic() - began))


CallsDep = Annotated[Calls, part(Calls)]


class Calling:
    """An active call of a client that may disconnect."""

    def __init__(
        self,
        request: Request,
        caller: ModelCaller,
        calls: CallsDep,
        prefer: Prefer = None,
    ) -> None:
        """Raises `InsufficientCreditsError` if the caller's account may not start a call."""
        calls.credits.check(caller.account_id)
        self.request = request
        self.calls = calls
        self.version_id: str | None = None
        """Id of the version that was called, if the deployment has several."""
        self._caller = caller
        self._prefer = prefer
        self._user: str | None = None

    @property
    def settings(self) -> Settings:
        return self.calls.settings

    async def target(self, asked: Asked, pipelines: Collection[str]) -> Entry:
        """Returns the deployment that a request names: see `Calls.target`."""
        # Some requests name the user that they are made for.
        self._user = getattr(asked, "user", None)
        return await self.calls.target(self._caller, asked.model, pipelines)

    async def collect(self, asked: MediaRequest) -> None:
        """Fetches the request's media. Raises `InvalidMediaError`, `ClientGoneError`."""
        if any(asked.media()):
            await unless_gone(self.request, self.calls.media.collect(asked))

    async def answer(
        self, entry: Entry, call: Call | Generation, asked: MediaRequest | None = None
    ) -> bytes:
        """Returns the whole answer, after the request's media are collected.

        Raises the errors of `Collector.collect` and `Runtime.call`, and `ClientGoneError`.
        """
        return await unless_gone(self.request, self._answer(entry, call, asked))

    def stream(
        self,
        entry: Entry,
        call: Call | Generation,
        *,
        timeout_s: float | None = None,
        keep_alive: bytes = KEEP_ALIVE,
    ) -> AsyncGenerator[bytes]:
        """Yields the answer in parts: see `Runtime.stream`. `streamed` turns them into a response.

        Args:
            timeout_s: the longest silence. None means the server's limit for inference.
        """
        return self.calls.stream(
            entry,
            call,
            self._choose_version,
            wait_s=self._wait_s,
            timeout_s=timeout_s,
            keep_alive=keep_alive,
            is_mirrored=True,
        )

    async def joined(self, parts: AsyncGenerator[bytes]) -> bytes:
        """Joins the parts of an answer with a time limit on silence only.

        Raises the errors of the parts, and `ClientGoneError`.
        """
        return await unless_gone(self.request, _joined(parts))

    async def _answer(
        self, entry: Entry, call: Call | Generation, asked: MediaRequest | None
    ) -> bytes:
        if asked is not None:
            await self.calls.media.collect(asked)
        return await self.calls.run(
            entry, call, self._choose_version, wait_s=self._wait_s, is_mirrored=True
        )

    def _choose_version(self, entry: Entry) -> str:
        """Returns the version that the request names, or the one that traffic rules select.

        Raises `ForbiddenError` and `NotFoundError` for a named version.
        """
        pinned = self.request.headers.get(VERSION)
        if pinned is None and len(entry.callable_versions) < 2:
            return entry.version_id
        version_id = traffic.picked(entry, self._party(entry)) if pinned is None else pinned
        if pinned is not None:
            self._check_pinned(entry, pinned)
        self.version_id = version_id
        return version_id

    def _check_pinned(self, entry: Entry, pinned: str) -> None:
        if self._caller.scope is not Scope.ACCOUNT:
            raise ForbiddenError(
                f"{VERSION} is for keys of the account: this key calls what is live.",
                code="version_not_allowed",
            )
        if pinned not in entry.callable_versions:
            raise NotFoundError(
                f"'{entry.model}' has no version {pinned[:64]} that can be called.",
                code="version_not_found",
                param=VERSION,
            )

    def _party(self, entry: Entry) -> str | None:
        """Returns the party with calls that all go to the same version, or None if each call may go
        to any.
        """
        key = self._caller.key_id
        if entry.sticky == traffic.NONE:
            return None
        if entry.sticky == traffic.USER:
            return self._user or key
        if entry.sticky.startswith(traffic.HEADER):
            return self.request.headers.get(entry.sticky.removeprefix(traffic.HEADER)) or key
        return key

    @property
    def _wait_s(self) -> float:
        return wait_seconds(self.settings, self._prefer)


def _adapted(entry: Entry, call: Call | Generation) -> Call | Generation:
    """Returns the call with the adapter's name for the replicas of its base. Other calls are
    returned unchanged.
    """
    if entry.adapter is None:
        return call
    if isinstance(call, Generation):
        return msgspec.structs.replace(call, adapter=entry.adapter)
    return replace(call, adapter=entry.adapter)


CallingDep = Annotated[Calling, made(Calling)]


class CallRoute(APIRoute):
    """Route that calls its handler directly, with a `Calling` as the only argument.

    FastAPI normally solves dependencies for each request. This takes longer than all other work of
    the gateway for a call. The handler's signature still documents the route.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        async def call(request: Request) -> Response:
            caller = await on_behalf(request)
            prefer = ",".join(request.headers.getlist("prefer"))
            calling = Calling(request, caller, part_of(request, Calls), prefer)
            response: Response = await self.endpoint(calling)
            if calling.version_id:
                response.headers[VERSION] = calling.version_id
            return response

        return call


def wait_seconds(settings: Settings, prefer: str | None) -> float:
    """Returns the wait in seconds of a `Prefer: wait=N` header, within the server's limit, or the
    default.
    """
    for preference in (prefer or "").split(","):
        if match := _WAIT.fullmatch(preference):
            return min(float(match[1]), settings.wait_max_s)
    return min(settings.wait_default_s, settings.wait_max_s)


async def unless_gone(request: Request, work: Awaitable[T]) -> T:
    """Awaits the work and cancels it if the client disconnects. Raises `ClientGoneError` in that
    case.
    """
    handler = asyncio.current_task()
    watch = asyncio.ensure_future(_cancel_when_gone(request, handler))
    try:
        return await work
    except asyncio.CancelledError:
        if handler and watch.done() and not watch.cancelled():
            handler.uncancel()
            raise ClientGoneError from None
        raise
    finally:
        watch.cancel()


async def _cancel_when_gone(request: Request, handler: "asyncio.Task[Any] | None") -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    if handler:
        handler.cancel()


async def _offered(
    parts: AsyncGenerator[bytes], offer: Callable[..., None]
) -> AsyncGenerator[bytes]:
    """Yields the parts as they arrive. After the last part, offers them to a mirror."""
    began, gathered, size = time.perf_counter(), list[bytes](), 0
    async with aclosing(parts):
        async for part in parts:
            size += len(part)
            if size <= LONGEST_COPIED:
                gathered.append(part)
            yield part
    if size <= LONGEST_COPIED:
        offer(b"".join(gathered), time.perf_counter() - began, is_streamed=True)


async def _joined(parts: AsyncGenerator[bytes]) -> bytes:
    async with aclosing(parts):
        return b"".join([part async for part in parts])
