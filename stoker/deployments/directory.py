"""The deployments that calls can name, in memory: the warm path reads no database."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from stoker.errors import InvalidAPIKeyError, InvalidRequestError, ModelNotFoundError
from stoker.web.principal import Principal, Scope


@dataclass(frozen=True, kw_only=True)
class Entry:
    deployment_id: str
    account_id: str
    model: str
    pipeline: str
    readiness: str
    source: str
    """As `DeploymentSpec` names it."""
    created_at: datetime


class Directory:
    def __init__(self) -> None:
        self._by_id: dict[str, Entry] = {}
        self._by_model: dict[tuple[str, str], Entry] = {}

    def put(self, entry: Entry) -> None:
        self.drop(entry.deployment_id)
        self._by_id[entry.deployment_id] = entry
        self._by_model[entry.account_id, entry.model] = entry

    def drop(self, deployment_id: str) -> None:
        entry = self._by_id.pop(deployment_id, None)
        name = (entry.account_id, entry.model) if entry else None
        # Another one may have the model id by now.
        if name and self._by_model.get(name) is entry:
            del self._by_model[name]

    def find(self, deployment_id: str) -> Entry | None:
        return self._by_id.get(deployment_id)

    def sources(self) -> set[str]:
        """Of all deployments."""
        return {entry.source for entry in self._by_id.values()}

    def __len__(self) -> int:
        return len(self._by_id)

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

    def resolve(self, caller: Principal, model: str | None) -> Entry:
        """The deployment that a request means.

        Raises `InvalidRequestError` where the key leaves a choice and no model was named,
        `ModelNotFoundError` for an id that the account does not have and `InvalidAPIKeyError` for
        one that exists outside the key's scope.
        """
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
            raise InvalidAPIKeyError
        return entry
