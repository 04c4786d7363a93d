"""OpenAPI document in its serialized form. It is built once, off the event loop."""

import asyncio
from collections.abc import Callable
from typing import Any

import orjson
from fastapi import Response

from stoker.platform.web.prefix import HEADER


class Document:
    def __init__(self, make: Callable[[], dict[str, Any]]) -> None:
        self._make = make
        self._content = b""
        self._turn = asyncio.Lock()

    async def response(self, prefix: str) -> Response:
        """Returns the document for a server that is reached below a prefix such as `/models`."""
        content = await self._made()
        if prefix:
            # The document itself lists no servers.
            servers = orjson.dumps({"servers": [{"url": prefix}]})
            content = servers[:-1] + b"," + content[1:]
        return Response(content, media_type="application/json", headers={"vary": HEADER})

    async def _made(self) -> bytes:
        async with self._turn:
            if not self._content:
                # This takes nearly a second.
                self._content = await asyncio.to_thread(lambda: orjson.dumps(self._make()))
        return self._content
