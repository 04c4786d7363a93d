"""Sends requests of the API with httpx."""

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import proxies
from .async_concurrency import in_thread
from .errors import ACCOUNT_HEADER
from .request import ApiRequest, JsonObject
from .response import EventLines, decoded, error_of, exchanging, not_an_address
from .settings import server_address

if TYPE_CHECKING:
    import httpx


class AsyncTransport:
    """Sends requests to one server with one API key."""

    def __init__(
        self,
        base_url: str,
        api_key: str | None,
        *,
        connections: int = 4,
        account: str | None = None,
    ) -> None:
        """Args:
        account: account that an operator key acts for."""
        httpx = proxies.import_httpx()
        if not base_url.startswith(("http://", "https://")):
            raise not_an_address(base_url)
        self.base_url = server_address(base_url)
        self._http = proxies.client(
            httpx.AsyncClient,
            self.base_url,
            headers=({"authorization": f"Bearer {api_key}"} if api_key else {})
            | ({ACCOUNT_HEADER: account} if account else {}),
            # Loading certificates takes 70 ms, which plain http does not need.
            verify=base_url.startswith("https:"),
            limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
        )

    async def aclose(self) -> None:
        await self._http.aclose()

    async def json(self, request: ApiRequest) -> Any:
        """Returns the JSON response to a request.

        Raises `ApiError` for an error response, `UnreachableError` if no connection can be made
        and `BrokenConnectionError` if it breaks.
        """
        return decoded(await self.succeeded(request))

    async def text(self, request: ApiRequest) -> str:
        """Returns the response body. Raises the same errors as `json`."""
        return (await self.succeeded(request)).text

    async def succeeded(self, request: ApiRequest) -> "httpx.Response":
        """Returns the response to a request. Raises the same errors as `json`."""
        answer = await self.send(request)
        if not answer.is_success:
            raise error_of(answer)
        return answer

    async def send(self, request: ApiRequest) -> "httpx.Response":
        """Returns the response to a request, regardless of its status."""
        return await self._exchange(request, stream=False)

    async def events(self, request: ApiRequest) -> AsyncIterator[JsonObject]:
        """Yields the events of a streamed response. Raises the same errors as `json`."""
        async for _, data in self.named_events(request):
            yield data

    async def named_events(self, request: ApiRequest) -> AsyncIterator[tuple[str, JsonObject]]:
        """Yields events with their names. The name is empty if an event has none."""
        lines = EventLines()
        async with self._streamed(request) as answer:
            async for line in answer.aiter_lines():
                for event in lines.read(line):
                    yield event

    async def pieces(self, request: ApiRequest) -> AsyncIterator[bytes]:
        """Yields the response body in pieces. Raises the same errors as `json`."""
        async with self._streamed(request) as answer:
            async for piece in answer.aiter_bytes():
                yield piece

    async def save(self, request: ApiRequest, target: Path) -> None:
        """Streams the response into a file, which appears only when complete.

        Raises the same errors as `json`.
        """
        part = target.with_name(f"{target.name}.part")
        try:
            # Small writes reach memory, not the disk.
            with part.open("wb") as file:
                async for piece in self.pieces(request):
                    file.write(piece)
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)

    @contextlib.asynccontextmanager
    async def _streamed(self, request: ApiRequest) -> "AsyncGenerator[httpx.Response]":
        answer = await self._exchange(request, stream=True)
        try:
            with exchanging(self.base_url):
                if not answer.is_success:
                    await answer.aread()
                    raise error_of(answer)
                yield answer
        finally:
            await answer.aclose()

    async def _exchange(self, request: ApiRequest, *, stream: bool) -> "httpx.Response":
        arguments = (
            await in_thread(lambda: request.arguments(self.base_url))
            if request.files
            else request.arguments(self.base_url)
        )
        with exchanging(self.base_url):
            built = self._http.build_request(**arguments)
            return await self._http.send(built, stream=stream)
