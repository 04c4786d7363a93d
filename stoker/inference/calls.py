"""The only way to run a model: deployment, versions, adapter, mirrors and runtime."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Protocol, Self

import msgspec

from stoker.base.errors import (
    ConflictError,
    EndpointNotSupportedError,
    ModelLoadingError,
)
from stoker.models.tasks.registry import endpoints
from stoker.platform.web.context import Platform, part
from stoker.platform.web.principal import Principal
from stoker.registry.deployments.directory import Directory, DirectoryEntry
from stoker.runtime.interface import KEEP_ALIVE, Call, OnProgress
from stoker.tenancy.usage.balances import CreditCheck
from stoker.wire.generation_request import Generation

RETRY_AFTER_S = 2.0
LONGEST_COPIED = 4 << 20
"""Maximum bytes of a streamed answer that is kept until its end for comparison with a mirror's
answer.
"""


class Mirror(Protocol):
    def __call__(
        self,
        entry: DirectoryEntry,
        live_id: str,
        call: Call | Generation,
        answer: bytes,
        seconds: float,
        /,
        *,
        is_streamed: bool = False,
    ) -> None: ...


class ResponseKeeper(Protocol):
    """Stores responses of `/v1/responses`. A folder above provides it."""

    async def extend(self, caller: Principal, body: Any, /) -> None:
        """Puts the items of earlier responses before a request's input.

        Raises `NotFoundError` and `ConflictError` for an earlier response that cannot be used.
        """
        ...

    def claim(self, caller: Principal, headers: Mapping[str, str], body: Any, /) -> Any:
        """Returns the claim of a request with an `Idempotency-Key`. None without that header.

        Raises `InvalidRequestError` if the request cannot be repeated.
        """
        ...

    async def claimed(self, caller: Principal, claim: Any, /) -> Mapping[str, Any] | None:
        """Returns the response that an earlier request with the same claim made.

        Raises `ConflictError` if that request had another body.
        """
        ...

    async def begin(self, caller: Principal, entry: DirectoryEntry, record: Any, /) -> Any:
        """Returns a response to store, before the work for it.

        Raises `PayloadTooLargeError` if the account's storage is full.
        """
        ...

    async def enqueue(self, begun: Any, claim: Any, /) -> Mapping[str, Any]:
        """Stores a response that is answered in the background. Returns it.

        Raises `RateLimitError` if the queue is full, and `ConflictError` if another request has
        the same claim.
        """
        ...

    async def keep(self, begun: Any, response: bytes, claim: Any = None, /) -> None:
        """Stores a response that was answered.

        Raises `ConflictError` if another request has the same claim.
        """
        ...

    def follow(self, account_id: str, response_id: str, /) -> AsyncGenerator[bytes]:
        """Yields the events of a response in the background."""
        ...


def check_serves(entry: DirectoryEntry, pipelines: Collection[str]) -> None:
    """Raises `ConflictError` if the deployment is stopped, and `EndpointNotSupportedError` if it
    serves none of these pipelines.
    """
    if entry.is_stopped:
        raise ConflictError(
            f"The deployment '{entry.model}' is stopped: start it first.",
            code="deployment_stopped",
        )
    if entry.pipeline not in pipelines:
        paths = ", ".join(endpoints(entry.pipeline)) or "no endpoint of this server"
        raise EndpointNotSupportedError(
            f"Endpoint not supported: '{entry.model}' is deployed for {entry.pipeline}, "
            f"served by {paths}."
        )


ChooseVersion = Callable[[DirectoryEntry], str]
"""Returns the id of the version that answers a call."""


def live_version(entry: DirectoryEntry) -> str:
    return entry.version_id


@dataclass(frozen=True, kw_only=True)
class Calls(Platform):
    """The only way to run a model, for any caller: HTTP requests, agents, jobs and mirrors.

    Only this class knows when a call must wait for a change of versions, which adapter it needs,
    and which answers are mirrored.
    """

    directory: Directory
    credits: CreditCheck
    mirror: Mirror | None = None
    """Receives answered calls of deployments that have mirrors."""
    keeper: ResponseKeeper | None = None
    """Stores responses. None if these calls store nothing."""

    def of_version(self, entry: DirectoryEntry, version_id: str) -> tuple[Self, DirectoryEntry]:
        """Returns calls that reach one version of a deployment only, and its entry for them.

        They ignore the deployment's traffic, do not wait for a change of versions, and are not
        mirrored.
        """
        entry = replace(
            entry, version_id=version_id, callable_versions=frozenset(), shares=(), mirrors=()
        )
        directory = Directory()
        directory.put(entry)
        return replace(self, directory=directory), entry

    async def target(
        self, caller: Principal, model: str | None, pipelines: Collection[str]
    ) -> DirectoryEntry:
        """Returns the deployment that is called.

        Raises `EndpointNotSupportedError` if it serves none of these pipelines, and the errors of
        `Directory.resolve`.
        """
        entry = await self.directory.resolve(caller, model)
        check_serves(entry, pipelines)
        return entry

    async def run(
        self,
        entry: DirectoryEntry,
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
        entry: DirectoryEntry,
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

    def _current(self, entry: DirectoryEntry) -> DirectoryEntry:
        """Returns the entry of the same deployment as it is now: it may have changed while media
        were fetched.
        """
        return self.directory.find(entry.deployment_id) or entry

    async def _until_released(self, entry: DirectoryEntry, wait_s: float) -> float:
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


def _adapted(entry: DirectoryEntry, call: Call | Generation) -> Call | Generation:
    """Returns the call with the adapter's name for the replicas of its base. Other calls are
    returned unchanged.
    """
    if entry.adapter is None:
        return call
    return msgspec.structs.replace(call, adapter=entry.adapter)


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
