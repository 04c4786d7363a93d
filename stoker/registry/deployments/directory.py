"""The deployments that calls can name, in memory: the warm path reads no database."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from stoker.base.errors import InvalidAPIKeyError, InvalidRequestError, ModelNotFoundError
from stoker.platform.web.principal import Principal, Scope
from stoker.wire.generation_request import AdapterName


@dataclass(frozen=True)
class Share:
    version_id: str
    percent: int


@dataclass(frozen=True, kw_only=True)
class Entry:
    deployment_id: str
    version_id: str
    """The live one."""
    account_id: str
    model: str
    pipeline: str
    readiness: str
    source: str
    """As `DeploymentSpec` names it."""
    created_at: datetime
    callable_versions: frozenset[str] = frozenset()
    """Those that a call can be pinned to, the live one among them."""
    sources: tuple[tuple[str, str], ...] = ()
    """Of the same: what the runtime was told of, each with its source."""
    shares: tuple[Share, ...] = ()
    """Of the calls; empty: all are the live version's."""
    mirrors: tuple[Share, ...] = ()
    """What gets copies of how many calls."""
    keeps_examples: bool = False
    """Whether calls are kept that those answer otherwise."""
    sticky: str = "none"
    """Whose calls all go to the same version; see `traffic.picked`."""
    base_id: str = ""
    """Of an adapter: the deployment whose versions answer its calls, as for that one's own."""
    adapter: AdapterName | None = None
    """And what is added to them."""
    is_stopped: bool = False
    """Of an adapter: its base may run for others."""


def _on(base: Entry, adapter: Entry) -> Entry:
    """An adapter, whose calls go where its base's go."""
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
        """Read what other servers have changed; None: there are no other servers."""
        self._by_id: dict[str, Entry] = {}
        self._held: dict[str, asyncio.Event] = {}
        self._by_model: dict[tuple[str, str], Entry] = {}
        self._adapters: dict[str, set[str]] = {}
        """Base → those that share its replicas."""

    def put(self, entry: Entry) -> None:
        self.drop(entry.deployment_id)
        if entry.base_id:
            self._adapters.setdefault(entry.base_id, set()).add(entry.deployment_id)
            base = self._by_id.get(entry.base_id)
            entry = _on(base, entry) if base else entry
        self._put(entry)
        for one in self._adapters.get(entry.deployment_id, ()):
            self._put(_on(entry, self._by_id[one]))

    def _put(self, entry: Entry) -> None:
        self._by_id[entry.deployment_id] = entry
        self._by_model[entry.account_id, entry.model] = entry

    def drop(self, deployment_id: str) -> None:
        entry = self._by_id.pop(deployment_id, None)
        if entry and (others := self._adapters.get(entry.base_id)):
            others.discard(deployment_id)
        name = (entry.account_id, entry.model) if entry else None
        # Another one may have the model id by now.
        if name and self._by_model.get(name) is entry:
            del self._by_model[name]

    def find(self, deployment_id: str) -> Entry | None:
        return self._by_id.get(deployment_id)

    def adapters_of(self, deployment_id: str) -> frozenset[str]:
        """The deployments that share a base's replicas."""
        return frozenset(self._adapters.get(deployment_id, ()))

    def live(self, deployment_id: str) -> str:
        """What the runtime knows a deployment's live version by; of one that is not known, its id,
        by which the runtime knows nothing.
        """
        entry = self._by_id.get(deployment_id)
        return entry.version_id if entry else deployment_id

    def hold(self, deployment_id: str) -> None:
        """Have a deployment's calls wait until `release`: one version makes room for another."""
        self._held.setdefault(deployment_id, asyncio.Event())

    def release(self, deployment_id: str) -> None:
        if held := self._held.pop(deployment_id, None):
            held.set()

    def held(self, entry: Entry) -> asyncio.Event | None:
        """What is set once a deployment's calls need not wait any more; None: they need not."""
        return self._held.get(entry.base_id or entry.deployment_id)

    def __len__(self) -> int:
        return len(self._by_id)

    def entries(self) -> list[Entry]:
        return list(self._by_id.values())

    def visible(self, caller: Principal) -> list[Entry]:
        """The deployments that a key may call, oldest first."""
        if caller.scope is Scope.DEPLOYMENT:
            entries: Iterable[Entry] = (
                self._by_id[identifier]
                for identifier in caller.deployment_ids
                if identifier in self._by_id
            )
            return sorted(entries, key=lambda entry: entry.deployment_id)
        return [entry for entry in self._by_id.values() if entry.account_id == caller.account_id]

    async def resolve(self, caller: Principal, model: str | None) -> Entry:
        """The deployment that a request means.

        A model id that is not known here may have been deployed through another server. Then the
        database is asked before the call is refused.

        Raises `InvalidRequestError` where the key leaves a choice and no model was named,
        `ModelNotFoundError` for an id that the account does not have and `InvalidAPIKeyError` for
        one that exists outside the key's scope.
        """
        try:
            return self._resolve(caller, model)
        except ModelNotFoundError:
            if self.catch_up is None:
                raise
        await self.catch_up()
        return self._resolve(caller, model)

    def _resolve(self, caller: Principal, model: str | None) -> Entry:
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

    def _named(self, caller: Principal, model: str) -> Entry:
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
