"""The path of a call, shared by all endpoints that run a model: key, credit, deployment, pipeline,
media, runtime, and clients that disconnect.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Coroutine
from contextlib import aclosing
from typing import Annotated, Any, Protocol, TypeVar

from fastapi import Header, Request, Response
from fastapi.routing import APIRoute

from stoker.base.config import Settings
from stoker.base.errors import (
    ForbiddenError,
    NotFoundError,
)
from stoker.inference.calls import Calls, CallsDep
from stoker.media.collect import Request as MediaRequest
from stoker.platform.web.context import part_of
from stoker.platform.web.dependencies import made
from stoker.platform.web.http import ClientGoneError
from stoker.platform.web.principal import Scope
from stoker.registry.deployments import traffic
from stoker.registry.deployments.directory import DirectoryEntry
from stoker.runtime.interface import KEEP_ALIVE, Call
from stoker.tenancy.keys.auth import ModelCaller, on_behalf
from stoker.wire.generation_request import Generation

T = TypeVar("T")

VERSION = "x-stoker-version"
"""Header. In a request, the version that must answer; in a response, the version that answered."""

_WAIT = re.compile(r'\s*wait\s*=\s*"?([0-9]{1,9})"?\s*(;.*)?', re.IGNORECASE)

Prefer = Annotated[
    str | None,
    Header(
        description="`wait=N`: maximum seconds to wait for a cold deployment (RFC 7240). "
        "Other and malformed preferences are ignored, as the RFC specifies.",
    ),
]


class ModelBody(Protocol):
    """A request's body."""

    @property
    def model(self) -> str | None: ...


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

    async def target(self, asked: ModelBody, pipelines: Collection[str]) -> DirectoryEntry:
        """Returns the deployment that a request names: see `Calls.target`."""
        # Some requests name the user that they are made for.
        self._user = getattr(asked, "user", None)
        return await self.calls.target(self._caller, asked.model, pipelines)

    async def collect(self, asked: MediaRequest) -> None:
        """Fetches the request's media. Raises `InvalidMediaError`, `ClientGoneError`."""
        if any(asked.media()):
            await unless_gone(self.request, self.calls.media.collect(asked))

    async def answer(
        self, entry: DirectoryEntry, call: Call | Generation, asked: MediaRequest | None = None
    ) -> bytes:
        """Returns the whole answer, after the request's media are collected.

        Raises the errors of `Collector.collect` and `Runtime.call`, and `ClientGoneError`.
        """
        return await unless_gone(self.request, self._answer(entry, call, asked))

    def stream(
        self,
        entry: DirectoryEntry,
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
        self, entry: DirectoryEntry, call: Call | Generation, asked: MediaRequest | None
    ) -> bytes:
        if asked is not None:
            await self.calls.media.collect(asked)
        return await self.calls.run(
            entry, call, self._choose_version, wait_s=self._wait_s, is_mirrored=True
        )

    def _choose_version(self, entry: DirectoryEntry) -> str:
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

    def _check_pinned(self, entry: DirectoryEntry, pinned: str) -> None:
        if self._caller.scope is not Scope.ACCOUNT:
            raise ForbiddenError(
                f"{VERSION} requires a key of scope 'account'. "
                "This key can call only the live version.",
                code="version_not_allowed",
            )
        if pinned not in entry.callable_versions:
            raise NotFoundError(
                f"'{entry.model}' has no version {pinned[:64]} that can be called.",
                code="version_not_found",
                param=VERSION,
            )

    def _party(self, entry: DirectoryEntry) -> str | None:
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


async def _joined(parts: AsyncGenerator[bytes]) -> bytes:
    async with aclosing(parts):
        return b"".join([part async for part in parts])
