"""Internal calls of one deployment, made by the server to try it or to check its answers."""

import json
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

from stoker.inference import json_bodies
from stoker.inference.calls import Calls
from stoker.inference.operation import WholeAnswer
from stoker.inference.registry import OPERATIONS
from stoker.inference.session import CallSession
from stoker.platform.web.principal import Principal, Scope
from stoker.registry.deployments.directory import DirectoryEntry


class InternalClient:
    """Client for the server's own calls of one deployment.

    Args:
        entry: the deployment. No other one can be called.
        version_id: the version that is called, regardless of the deployment's traffic.
    """

    def __init__(self, calls: Calls, entry: DirectoryEntry, version_id: str) -> None:
        self._calls, self._entry = calls.of_version(entry, version_id)
        self._caller = Principal("", "", Scope.ACCOUNT, entry.account_id, frozenset())

    def body(self, example: Mapping[str, Any]) -> bytes:
        """Returns an example as a request's body."""
        return json.dumps({**example, "model": self._entry.model}).encode()

    async def answer(self, path: str, body: bytes) -> bytes:
        """Returns the answer of an operation. A streamed answer is read to its end, but not
        returned.

        Waits for a model that is not loaded, as long as calls may wait. Raises the `StokerError`
        that a client would receive, also in a later part of a streamed answer.
        """
        operation = OPERATIONS[path]
        session = CallSession(self._calls, self._caller, wait_s=self._calls.settings.wait_max_s)
        request = await json_bodies.parse(body, operation.request, has_media=operation.has_media)
        answer = await operation.run(session, request)
        if isinstance(answer, WholeAnswer):
            return answer.content
        async with aclosing(answer.parts) as parts:
            async for _ in parts:
                pass
        return b""
