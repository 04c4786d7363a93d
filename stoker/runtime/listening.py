"""Notifications of a runtime: changes, loads and ended calls."""

import logging
from collections.abc import Callable, Mapping, Sequence

import msgspec

from stoker.runtime.observed import Reason, Status
from stoker.runtime.specification import DeploymentSpec
from stoker.wire.notices import Notice

log = logging.getLogger(__name__)

_FAILED = "runtime listener failed"
OK, CANCELLED = "ok", "cancelled"
CANCELLED_STATUS = 499
"""nginx's status of a client that closed the connection first."""


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of one call."""

    account_id: str
    deployment_id: str
    model: str
    outcome: str
    """`OK`, `CANCELLED` or the `code` of the error that ended the call."""
    status: int = 200
    """HTTP status: 200, `CANCELLED_STATUS` or the status of the error."""
    waited_s: float
    """Seconds that the call waited for a ready replica."""
    seconds: float
    """Seconds with that replica: queue, preparation and computation."""
    counts: Mapping[str, int]
    """Amounts of processed work, as counted by the replica: see `RequestResult.counts`."""
    version_id: str = ""
    """Version that answered. Empty if the deployment has no own version, such as an adapter."""
    is_copy: bool = False
    """True if a mirror answered and no caller waited for it."""
    times: Mapping[str, int] = {}
    """Durations of the replica's phases in microseconds: `RequestResult.times`."""


class RuntimeListener:
    """Receives notifications of a runtime. Called on the event loop; must not block."""

    def changed(self, spec: DeploymentSpec, status: Status, reason: Reason, message: str) -> None:
        """The observed state of a specification has changed."""

    def loaded(self, spec: DeploymentSpec, seconds: float) -> None:
        """A replica became ready, `seconds` after it was requested."""

    def noticed(self, spec: DeploymentSpec, notices: Sequence[Notice]) -> None:
        """A replica that has just loaded reports notices about its model. They replace earlier
        notices.
        """

    def waits(self) -> None:
        """A call starts to wait for a ready replica. Called in the context of the call's task."""

    def given(self) -> None:
        """A call that waited is about to be sent to a replica. Called in the context of the call's
        task.
        """

    def served(self, call: Served) -> None:
        """A call has ended. Called in the context of the call's task. For a cancelled call, called
        as soon as the replica has reported its outcome.
        """

    def measured(self, spec: DeploymentSpec) -> None:
        """The memory need of one replica, `spec.memory_bytes`, was measured."""


class Listeners(RuntimeListener):
    """Notifies all listeners. A listener that fails is logged and does not undo the event."""

    def __init__(self) -> None:
        self._listeners: list[RuntimeListener] = []

    def add(self, *listeners: RuntimeListener) -> None:
        self._listeners += listeners

    def changed(self, spec: DeploymentSpec, status: Status, reason: Reason, message: str) -> None:
        self._notify(lambda listener: listener.changed(spec, status, reason, message))

    def loaded(self, spec: DeploymentSpec, seconds: float) -> None:
        self._notify(lambda listener: listener.loaded(spec, seconds))

    def noticed(self, spec: DeploymentSpec, notices: Sequence[Notice]) -> None:
        self._notify(lambda listener: listener.noticed(spec, notices))

    def waits(self) -> None:
        self._notify(lambda listener: listener.waits())

    def given(self) -> None:
        self._notify(lambda listener: listener.given())

    def served(self, call: Served) -> None:
        # Runs for every call, so it creates no function.
        for listener in self._listeners:
            try:
                listener.served(call)
            except Exception:
                log.exception(_FAILED)

    def measured(self, spec: DeploymentSpec) -> None:
        self._notify(lambda listener: listener.measured(spec))

    def _notify(self, tell: Callable[[RuntimeListener], None]) -> None:
        for listener in self._listeners:
            try:
                tell(listener)
            except Exception:
                log.exception(_FAILED)
