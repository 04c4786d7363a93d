"""Calls operations with retries, and returns typed values."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast
from uuid import uuid4

from ..async_concurrency import sleep
from ..async_transport import AsyncTransport
from ..client import Client
from ..errors import StokerError
from ..media import with_media
from ..request import ApiRequest
from ..response import converted, decoded, json_object, typed
from ..retry import RetryAttempts, RetryLimits

if TYPE_CHECKING:
    import httpx

Value = TypeVar("Value")

PAGE_LIMIT = 100


class AsyncApi:
    """Sends the requests of the resources' methods."""

    def __init__(
        self,
        transport: AsyncTransport,
        limits: RetryLimits,
        timeout_s: float,
        open_client: Callable[[int], Client],
    ) -> None:
        """Args:
        open_client: opens a blocking client with a number of connections, for pushes.
        """
        self.transport = transport
        self.limits = limits
        self.timeout_s = timeout_s
        self.open_client = open_client

    async def value(
        self,
        kind: type[Value],
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, Any] | None = None,
        media: str | None = None,
        is_created: bool = False,
    ) -> Value:
        """Calls an operation and returns its value.

        Args:
            media: name of the body's field that may contain files or bytes.
            is_created: True if an idempotency key makes the operation safe to repeat.
        """
        parts = with_media(dict(body), media) if body is not None else None
        request = self.request(
            method,
            path,
            json=parts.fields if parts else None,
            files=parts.files if parts else (),
            params=_given(query),
            headers={"idempotency-key": uuid4().hex} if is_created else {},
        )
        return typed(await self.answer(request), kind)

    async def result(
        self,
        path: str,
        body: Mapping[str, Any],
        *,
        media: str | None = None,
        wait: int | None = None,
    ) -> Any:
        """Calls a task and returns its result as JSON.

        Args:
            wait: seconds to wait for a cold model to load.
        """
        parts = with_media(dict(body), media)
        headers = {} if wait is None else {"prefer": f"wait={wait}"}
        request = self.request("POST", path, json=parts.fields, files=parts.files, headers=headers)
        return decoded(await self.answer(request))

    async def text(self, method: str, path: str) -> str:
        return (await self.answer(self.request(method, path))).text

    async def pages(
        self,
        kind: type[Value],
        path: str,
        *,
        limit: int | None = None,
        query: Mapping[str, Any] | None = None,
        is_paged: bool = True,
    ) -> AsyncIterator[Value]:
        """Yields the objects of a list, at most `limit`. Fetches further pages as needed."""
        left = limit
        given = dict(_given(query))
        while left is None or left > 0:
            if is_paged:
                given["limit"] = PAGE_LIMIT if left is None else min(PAGE_LIMIT, left)
            page = json_object(decoded(await self.answer(self.request("GET", path, params=given))))
            values = cast("list[object]", page.get("data") or [])
            for value in values:
                yield converted(value, kind)
            if not page.get("has_more"):
                return
            left = None if left is None else left - len(values)
            given["after"] = page["last_id"]

    def request(self, method: str, path: str, **parts: Any) -> ApiRequest:
        return ApiRequest(method=method, path=path, timeout_s=self.timeout_s, **parts)

    async def answer(self, request: ApiRequest) -> "httpx.Response":
        """Returns the successful response to a request, after retries if necessary."""
        return await self.retried(request, lambda: self.transport.succeeded(request))

    async def retried(self, request: ApiRequest, attempt: Callable[[], Awaitable[Value]]) -> Value:
        """Returns the first successful result of `attempt`. Raises its last error otherwise."""
        attempts = RetryAttempts(self.limits, is_repeatable=request.is_repeatable)
        while True:
            try:
                return await attempt()
            except StokerError as error:
                delay = attempts.delay_s(error)
                if delay is None:
                    raise
                await sleep(delay)

    async def save(self, path: str, target: str | PathLike[str], query: Mapping[str, str]) -> Path:
        """Downloads a file. The target appears only when complete. Returns its path."""
        place = Path(target)
        request = self.request("GET", path, params=query)
        await self.retried(request, lambda: self.transport.save(request, place))
        return place


class AsyncResource:
    """Base class of the resources."""

    def __init__(self, api: AsyncApi) -> None:
        self._api = api


def _given(query: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Returns the parameters that have a value."""
    return {name: value for name, value in (query or {}).items() if value is not None}
