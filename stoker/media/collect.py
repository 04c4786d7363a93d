"""Collects the media of a request before the request goes to a replica."""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from stoker.base.errors import InvalidMediaError
from stoker.media import sources
from stoker.media.fetch import Fetcher
from stoker.media.inline import Inline
from stoker.media.media import Media

AT_ONCE = 4
"""Maximum number of one request's media that are fetched at the same time."""


class Request(Protocol):
    """Protocol of a request that may hold media."""

    def media(self) -> Iterator[tuple[str, Media]]:
        """Yields the request's media, each with the path of its field."""
        ...


class Collector:
    """Loads media from the sources that a client names, within limits."""

    def __init__(
        self, fetcher: Fetcher, *, folders: Sequence[Path], limit_bytes: int, request_bytes: int
    ) -> None:
        self._fetcher = fetcher
        self._folders = folders
        self._limit_bytes = limit_bytes
        self._request_bytes = request_bytes

    async def collect(self, request: Request) -> None:
        """Fills in the content of a request's media. Equal sources are fetched once.

        Raises `InvalidMediaError` with the path of the field at fault.
        """
        missing: dict[str | Inline, list[tuple[str, Media]]] = {}
        for path, media in request.media():
            if media.content is None and media.source is not None:
                missing.setdefault(media.source, []).append((path, media))
        if not missing:
            return
        timeout_s: float | None = getattr(request, "timeout", None)
        turns = asyncio.Semaphore(AT_ONCE)
        received = 0

        async def fill(source: str | Inline, places: list[tuple[str, Media]]) -> None:
            nonlocal received
            path = places[0][0]
            async with turns:
                content = await self._load(source, path, timeout_s)
            received += len(content)
            if received > self._request_bytes:
                raise InvalidMediaError(
                    f"The media of this request exceed {self._request_bytes} bytes in total, "
                    "the limit of this server. Send fewer at once.",
                    param=path,
                )
            for _, media in places:
                media.content = content

        tasks = [asyncio.ensure_future(fill(*entry)) for entry in missing.items()]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def close(self) -> None:
        await self._fetcher.close()

    async def _load(self, source: str | Inline, path: str, timeout_s: float | None) -> bytes:
        try:
            return await sources.load(
                source,
                fetcher=self._fetcher,
                folders=self._folders,
                limit_bytes=self._limit_bytes,
                timeout_s=timeout_s,
            )
        except InvalidMediaError as error:
            error.param = path
            raise
