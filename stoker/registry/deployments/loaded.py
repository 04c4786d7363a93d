"""Tracks the versions that this server has loaded, as reported to other servers."""

from stoker.runtime.listening import RuntimeListener
from stoker.runtime.observed import Reason, Status
from stoker.runtime.specification import DeploymentSpec

_LOADED = (Status.STARTING, Status.READY)
_MOST = 10_000


class LoadedVersions(RuntimeListener):
    def __init__(self) -> None:
        self._ids: set[str] = set()

    def changed(self, spec: DeploymentSpec, status: Status, reason: Reason, message: str) -> None:
        if status in _LOADED:
            self._ids.add(spec.id)
        else:
            self._ids.discard(spec.id)

    def ids(self) -> list[str]:
        return sorted(self._ids)[:_MOST]
