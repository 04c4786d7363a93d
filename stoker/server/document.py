"""An OpenAPI document as it is sent: made once, beside the event loop."""

import asyncio
from collections.abc import Callable
from typing import Any

import orjson
from fastapi import Response


class Document:
    def __init__(self, make: Callable[[], dict[str, Any]]) -> None:
        self._make = make
        self._content = b""
        self._turn = asyncio.Lock()

    async def response(self) -> Response:
        async with self._turn:
            if not self._content:
                # It takes the better part of a second.
                self._content = await asyncio.to_thread(lambda: orjson.dumps(self._make()))
        return Response(self._content, media_type="application/json")
