"""Calls of one deployment that no client makes: the server tries it, or checks what it answers."""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fastapi import Response

from stoker.inference.call import Calling, Calls
from stoker.platform.web.http import request_of
from stoker.platform.web.principal import Principal, Scope
from stoker.registry.deployments.directory import Directory, Entry
from stoker.workloads.evaluation.replay.examples import HANDLERS


class InternalClient:
    """
    Args:
        entry: what is called; nothing else can be.
        version_id: which version of it, whatever its traffic is.
    """

    def __init__(self, calls: Calls, entry: Entry, version_id: str) -> None:
        entry = replace(
            entry, version_id=version_id, callable_versions=frozenset(), shares=(), mirrors=()
        )
        directory = Directory()
        directory.put(entry)
        self._calls = replace(calls, directory=directory)
        self._entry = entry
        self._caller = Principal("", "", Scope.ACCOUNT, entry.account_id, frozenset())

    def body(self, example: Mapping[str, Any]) -> bytes:
        """An example as a request's body."""
        return json.dumps({**example, "model": self._entry.model}).encode()

    async def answer(self, path: str, body: bytes) -> bytes:
        """What the endpoint answers; a model that is not loaded is waited for, as long as calls
        may. Raises the `StokerError` that a client would get.
        """
        wait = f"wait={math.ceil(self._calls.settings.wait_max_s)}"
        calling = Calling(request_of(path, body), self._caller, self._calls, wait)
        answer: Response = await HANDLERS[path](calling)
        return bytes(answer.body)
