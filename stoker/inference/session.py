"""The path of one call: credit, deployment, media, version and runtime. Independent of HTTP."""

from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Mapping
from dataclasses import replace
from typing import Any, Protocol

from stoker.base.config import Settings
from stoker.base.errors import ForbiddenError, NotFoundError
from stoker.base.fairness import CURRENT_CALLER, Tier
from stoker.inference.calls import Calls
from stoker.inference.service_tiers import TIER, requested_tier
from stoker.media.collect import Request as MediaRequest
from stoker.platform.web.principal import Principal, Scope
from stoker.registry.deployments import traffic
from stoker.registry.deployments.directory import DirectoryEntry
from stoker.runtime.interface import KEEP_ALIVE, Call
from stoker.wire.generation_request import Generation

VERSION = "x-stoker-version"
"""Header. In a request, the version that must answer; in a response, the version that answered."""
_NO_HEADERS: Mapping[str, str] = {}


class ModelBody(Protocol):
    """A request that names the deployment to call."""

    @property
    def model(self) -> str | None: ...


def _no_url() -> str:
    return ""


class CallSession:
    """One call of a model: its caller, its wait, and the version that answers."""

    def __init__(
        self,
        calls: Calls,
        caller: Principal,
        *,
        wait_s: float,
        headers: Mapping[str, str] = _NO_HEADERS,
        base_url: Callable[[], str] = _no_url,
        user: str | None = None,
    ) -> None:
        """
        Args:
            wait_s: longest wait in seconds for a ready replica.
            headers: may name a version, and the party of a deployment's traffic rules.
            base_url: returns the server's address as the caller sees it, for links in answers.
            user: user that the request names, for a deployment's traffic rules.

        Raises `InsufficientCreditsError` if the caller's account may not start a call.
        """
        calls.credits.check(caller.account_id)
        self.calls = calls
        self.base_url = base_url
        self.version_id: str | None = None
        """Id of the version that was called, if the deployment has several."""
        self.tier: Tier | None = None
        """Service tier of the call, if the request names one."""
        self._added_headers: Mapping[str, str] = _NO_HEADERS
        self._caller = caller
        self._wait_s = wait_s
        self._headers = headers
        self._user = user

    @property
    def caller(self) -> Principal:
        return self._caller

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers of the request."""
        return self._headers

    @property
    def settings(self) -> Settings:
        return self.calls.settings

    def add_header(self, name: str, value: str) -> None:
        """Adds a header to the answer."""
        self._added_headers = {**self._added_headers, name: value}

    async def target(self, body: ModelBody, pipelines: Collection[str]) -> DirectoryEntry:
        """Returns the deployment that a request names: see `Calls.target`."""
        # Some requests name the user that they are made for.
        self._user = vars(body).get("user")
        self._use_tier(requested_tier(body, self._headers))
        return await self.calls.target(self._caller, body.model, pipelines)

    def _use_tier(self, tier: Tier | None) -> None:
        """Makes the current task work in a tier. Without the right to priority, that is `default`.
        Background work stays background work.
        """
        if tier is None:
            return
        party = CURRENT_CALLER.get()
        if party.tier.is_background:
            tier = party.tier
        elif tier is Tier.PRIORITY and not self._caller.may_prioritize:
            tier = Tier.DEFAULT
        self.tier = tier
        CURRENT_CALLER.set(replace(party, tier=tier))

    @property
    def answer_headers(self) -> Mapping[str, str]:
        """Headers that the call adds to the answer."""
        headers = dict(self._added_headers)
        if self.version_id:
            headers[VERSION] = self.version_id
        if self.tier:
            headers[TIER] = self.tier
        return headers

    async def collect(self, body: MediaRequest) -> None:
        """Fetches the request's media. Raises `InvalidMediaError`."""
        await self.calls.media.collect(body)

    def run(self, entry: DirectoryEntry, call: Call | Generation) -> Coroutine[Any, Any, bytes]:
        """Returns the whole answer: see `Calls.run`."""
        return self.calls.run(
            entry, call, self._choose_version, wait_s=self._wait_s, is_mirrored=True
        )

    def stream(
        self,
        entry: DirectoryEntry,
        call: Call | Generation,
        *,
        timeout_s: float | None = None,
        keep_alive: bytes = KEEP_ALIVE,
    ) -> AsyncGenerator[bytes]:
        """Yields the answer in parts: see `Calls.stream`.

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

    def _choose_version(self, entry: DirectoryEntry) -> str:
        """Returns the version that the request names, or the one that traffic rules select.

        Raises `ForbiddenError` and `NotFoundError` for a named version.
        """
        pinned = self._headers.get(VERSION)
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
            return self._headers.get(entry.sticky.removeprefix(traffic.HEADER)) or key
        return key
