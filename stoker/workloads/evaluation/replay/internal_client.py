"""Internal calls of one deployment, made by the server to try it or to check its answers."""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fastapi import Response

from stoker.inference.call import Calling
from stoker.inference.calls import Calls
from stoker.platform.web.http import request_of
from stoker.platform.web.principal import Principal, Scope
from stoker.registry.deployments.directory import Directory, DirectoryEntry
from stoker.workloads.evaluation.replay.examples import HANDLERS


class InternalClient:
    """Client for the server's own calls of one deployment.

    Args:
        entry: the deployment. No other one can be called.
        version_id: the version that is called, regardless of the deployment's traffic.
    """

    def __init__(self, calls: Calls, entry: DirectoryEntry, version_id: str) -> None:
        entry = replace(
            entry, version_id=version_id, callable_versions=frozenset(), shares=(), mirrors=()
        )
        directory = Directory()
        directory.put(entry)
        self._calls = replace(calls, directory=directory)
        self._entry = entry
        self._caller = Principal("", "", Scope.ACCOUNT, entry.account_id, frozenset())

    def body(self, example: Mapping[str, Any]) -> bytes:
        """Returns an example as a request's body."""
        return json.dumps({**example, "model": self._entry.model}).encode()

    async def answer(self, path: str, body: bytes) -> bytes:
        """Returns the endpoint's answer.

        Waits for a model that is not loaded, as long as calls may wait. Raises the `StokerError`
        that a client would receive.
        """
        wait = f"wait={math.ceil(self._calls.settings.wait_max_s)}"
        calling = Calling(request_of(path, body), self._caller, self._calls, wait)
        answer: Response = await HANDLERS[path](calling)
        return bytes(answer.body)
