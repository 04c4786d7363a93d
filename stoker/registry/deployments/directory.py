"""In-memory directory of callable deployments, so that calls to loaded models read no database."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from stoker.base.errors import InvalidAPIKeyError, InvalidRequestError, ModelNotFoundError
from stoker.platform.web.principal import Principal, Scope
from stoker.wire.generation_request import AdapterName


@dataclass(frozen=True)
class VersionShare:
    version_id: str
    percent: int


@dataclass(frozen=True, kw_only=True)
class DirectoryEntry:
    deployment_id: str
    version_id: str
    """Id of the live version."""
    account_id: str
    model: str
    pipeline: str
    readiness: str
    source: str
    """Source in the form of `DeploymentSpec.source`."""
    created_at: datetime
    callable_versions: frozenset[str] = frozenset()
    """Versions that a call can be pinned to, including the live one."""
    sources: tuple[tuple[str, str], ...] = ()
    """Pairs of callable version and source, as passed to the runtime."""
    shares: tuple[VersionShare, ...] = ()
    """Shares of the calls by version. Empty means that the live version receives all calls."""
    mirrors: tuple[VersionShare, ...] = ()
    """Versions that receive copies of calls, with their shares."""
    keeps_examples: bool = False
    """True if calls are kept that the mirrors answer differently."""
    sticky: str = "none"
    """Caller attribute that selects the version, so that its calls go to the same one. See
    `traffic.picked`.
    """
    base_id: str = ""
    """For an adapter, the id of the base. The base's versions answer the adapter's calls like its
    own.
    """
    adapter: AdapterName | None = None
    """Adapter that is added to the base's weights."""
    is_stopped: bool = False
    """True if the adapter is stopped. Its base may still run for others."""


def _on(base: DirectoryEntry, adapter: DirectoryEntry) -> DirectoryEntry:
    """Returns the adapter's entry with its calls routed like those of its base."""
    return replace(
        adapter,
        version_id=base.version_id,
        callable_versions=base.callable_versions,
        shares=base.shares,
        sticky=base.sticky,
        readiness=base.readiness,
    )


class Directory:
    def __init__(self) -> None:
        self.catch_up: Callable[[], Awaitable[None]] | None = None
        """Reads the changes of other servers. None if this is the only server."""
        self._by_id: dict[str, DirectoryEntry] = {}
        self._held: dict[str, asyncio.Event] = {}
        self._by_model: dict[tuple[str, str], DirectoryEntry] = {}
        self._adapters: dict[str, set[str]] = {}
        """Maps a base to the deployments that share its replicas."""

    def put(self, entry: DirectoryEntry) -> None:
        self.drop(entry.deployment_id)
        if entry.base_id:
            self._adapters.setdefault(entry.base_id, set()).add(entry.deployment_id)
            base = self._by_id.get(entry.base_id)
            entry = _on(base, entry) if base else entry
        self._put(entry)
        for adapter_id in self._adapters.get(entry.deployment_id, ()):
            self._put(_on(entry, self._by_id[adapter_id]))

    def _put(self, entry: DirectoryEntry) -> None:
        self._by_id[entry.deployment_id] = entry
        self._by_model[entry.account_id, entry.model] = entry

    def drop(self, deployment_id: str) -> None:
        entry = self._by_id.pop(deployment_id, None)
        if entry and (adapters := self._adapters.get(entry.base_id)):
            adapters.discard(deployment_id)
        name = (entry.account_id, entry.model) if entry else None
        # Another deployment may have received the model id in the meantime.
        if name and self._by_model.get(name) is entry:
            del self._by_model[name]

    def find(self, deployment_id: str) -> DirectoryEntry | None:
        return self._by_id.get(deployment_id)

    def adapters_of(self, deployment_id: str) -> frozenset[str]:
        """Returns the deployments that share a base's replicas."""
        return frozenset(self._adapters.get(deployment_id, ()))

    def live(self, deployment_id: str) -> str:
        """Returns the id of the deployment's live version, under which the runtime knows it. For an
        unknown deployment, returns its own id, which the runtime does not know.
        """
        entry = self._by_id.get(deployment_id)
        return entry.version_id if entry else deployment_id

    def hold(self, deployment_id: str) -> None:
        """Makes a deployment's calls wait until `release`, while one version makes room for
        another.
        """
        self._held.setdefault(deployment_id, asyncio.Event())

    def release(self, deployment_id: str) -> None:
        if event := self._held.pop(deployment_id, None):
            event.set()

    def held(self, entry: DirectoryEntry) -> asyncio.Event | None:
        """Returns the event that is set once a deployment's calls may continue. None if they need
        not wait.
        """
        return self._held.get(entry.base_id or entry.deployment_id)

    def __len__(self) -> int:
        return len(self._by_id)

    def entries(self) -> list[DirectoryEntry]:
        return list(self._by_id.values())

    def visible(self, caller: Principal) -> list[DirectoryEntry]:
        """Returns the deployments that a key may call, oldest first."""
        if caller.scope is Scope.DEPLOYMENT:
            entries: Iterable[DirectoryEntry] = (
                self._by_id[identifier]
                for identifier in caller.deployment_ids
                if identifier in self._by_id
            )
            return sorted(entries, key=lambda entry: entry.deployment_id)
        return [entry for entry in self._by_id.values() if entry.account_id == caller.account_id]

    async def resolve(self, caller: Principal, model: str | None) -> DirectoryEntry:
        """Returns the deployment that a request names.

        A model id that is unknown here may have been deployed through another server. The database
        is then read before the call is refused.

        Raises `InvalidRequestError` if no model was named and the key allows several. Raises
        `ModelNotFoundError` for an id that the account does not have. Raises `InvalidAPIKeyError`
        for an id outside the key's scope.
        """
        try:
            return self._resolve(caller, model)
        except ModelNotFoundError:
            if self.catch_up is None:
                raise
        await self.catch_up()
        return self._resolve(caller, model)

    def _resolve(self, caller: Principal, model: str | None) -> DirectoryEntry:
        if model is not None:
            return self._named(caller, model)
        choices = self.visible(caller)
        if len(choices) == 1:
            return choices[0]
        if not choices:
            raise ModelNotFoundError("Model not found: this key covers no deployment.")
        names = ", ".join(entry.model for entry in choices[:20])
        raise InvalidRequestError(
            f"This key covers several deployments: name one in 'model' ({names}).", param="model"
        )

    def _named(self, caller: Principal, model: str) -> DirectoryEntry:
        entry = self._by_model.get((caller.account_id or "", model))
        if entry is None:
            raise ModelNotFoundError(
                f"Model not found: '{model[:128]}' is not the model id of a deployment of this "
                "account. GET /v1/models lists them.",
                param="model",
            )
        if caller.scope is Scope.DEPLOYMENT and entry.deployment_id not in caller.deployment_ids:
            raise InvalidAPIKeyError(
                "The API key is valid, but its scope is 'deployment' and it does not cover "
                f"'{model[:128]}'. GET /v1/models lists the models that it covers."
            )
        return entry
