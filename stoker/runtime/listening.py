"""What a runtime tells of: changes, loads, and calls that have ended."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from stoker.runtime.observed import Reason, Status
from stoker.runtime.specification import DeploymentSpec
from stoker.wire.notices import Notice

log = logging.getLogger(__name__)

OK, CANCELLED = "ok", "cancelled"
CANCELLED_STATUS = 499
"""nginx's, of a client that closed the connection first."""


@dataclass(frozen=True, kw_only=True)
class Served:
    """How a call went."""

    account_id: str
    deployment_id: str
    model: str
    outcome: str
    """`OK`, `CANCELLED` or the `code` of the error that it ended with."""
    status: int = 200
    """`CANCELLED_STATUS`, or that of the error."""
    waited_s: float
    """For a replica that was ready."""
    seconds: float
    """With that replica: its queue, preparing, computing."""
    counts: Mapping[str, int]
    """What was worked on, as the replica counted it: `Result.counts` of the protocol."""
    version_id: str = ""
    """Which version has answered; nothing: the deployment has none of its own, as an adapter."""
    is_copy: bool = False
    """A mirror has answered, and nobody waited for it."""
    times: Mapping[str, int] = field(default_factory=dict[str, int])
    """Of the replica's phases, microseconds: `Result.times`."""


class RuntimeListener:
    """Is notified of what happens. Called on the event loop; must not block."""

    def changed(self, spec: DeploymentSpec, status: Status, reason: Reason, message: str) -> None:
        """The observed state of what a specification describes has changed."""

    def loaded(self, spec: DeploymentSpec, seconds: float) -> None:
        """A replica became ready, so long after it was asked for."""

    def noticed(self, spec: DeploymentSpec, notices: Sequence[Notice]) -> None:
        """A replica that has just loaded says this of its model, in place of earlier notices."""

    def waits(self) -> None:
        """A call has to wait for a replica that is ready. Called in the context of its task."""

    def given(self) -> None:
        """A call that has waited is about to be given to a replica. Called as `waits` is."""

    def served(self, call: Served) -> None:
        """A call has ended. Called in the context of its task; of one that was cancelled, as soon
        as the replica has reported what it came to.
        """

    def measured(self, spec: DeploymentSpec) -> None:
        """What one replica needs, `spec.memory_bytes`, was measured."""


class Listeners(RuntimeListener):
    """Notifies all of them. A listener that fails is logged: what has happened has happened."""

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
        self._notify(lambda listener: listener.served(call))

    def measured(self, spec: DeploymentSpec) -> None:
        self._notify(lambda listener: listener.measured(spec))

    def _notify(self, tell: Callable[[RuntimeListener], None]) -> None:
        for listener in self._listeners:
            try:
                tell(listener)
            except Exception:
                log.exception("runtime listener failed")
