"""Calls of one gateway that one node works on."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Generator
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Any

from stoker.base.errors import CapacityError
from stoker.runtime.interface import OnProgress
from stoker.runtime.listening import CANCELLED, CANCELLED_STATUS, Served
from stoker.runtime.nodes import messages
from stoker.runtime.nodes.messages import (
    End,
    Failed,
    OfCall,
    Part,
    Progress,
    Refused,
    Report,
    Waits,
    Whole,
)
from stoker.runtime.parts import Parts
from stoker.runtime.specification import DeploymentSpec

REPORTED_S = 60.0
"""Maximum seconds between the end of a call and its report. Later reports are ignored."""


class RefusedError(Exception):
    """Raised if the node does not have the lease, or does not know its specification. The call was
    not started.
    """

    def __init__(self, generation: int) -> None:
        """
        Args:
            generation: generation of the node's lease. 0 means that it has none.
        """
        super().__init__("the node has another lease")
        self.generation = generation


class NodeLostError(Exception):
    """Raised if the connection ended or does not exist."""

    def __init__(self, *, sent: bool, waited: Served | None = None) -> None:
        """
        Args:
            sent: True if the node may have worked on the call.
            waited: outcome of a call that did not reach a replica there. It is reported unless
                another node answers the call.
        """
        super().__init__("the node is not connected")
        self.sent = sent
        self.waited = waited


@dataclass(eq=False)
class Flight:
    """A call that was sent to a node."""

    spec: DeploymentSpec
    begun: float
    run: Callable[..., Any]
    """Runs a function in the context of the request."""
    on_progress: OnProgress | None
    is_over: bool = False
    """True if the call has ended or no caller waits for it any more."""
    is_reported: bool = False
    waits: bool = False
    """True if the node reported that the call still waits for a replica."""
    parts: Parts = field(default_factory=Parts)

    def end(self, content: bytes = b"") -> None:
        """Ends the call. Does nothing if it is over."""
        if not self.is_over:
            self.is_over = True
            if content:
                self.parts.add(content)
            self.parts.end()

    def fail(self, error: Exception) -> None:
        """Ends the call with an error. Does nothing if it is over."""
        if not self.is_over:
            self.is_over = True
            self.parts.fail(error)


class Flights:
    def __init__(self, on_served: Callable[[Served], None]) -> None:
        """
        Args:
            on_served: is notified of the outcome of each call, in the context of its request.
        """
        self.outstanding = Counter[str]()
        """Maps a specification to its number of unanswered calls."""
        self._told_served = on_served
        self._flights: dict[int, Flight] = {}
        self._loop = asyncio.get_running_loop()

    @contextlib.contextmanager
    def one(
        self,
        identifier: int,
        spec: DeploymentSpec,
        on_progress: OnProgress | None,
        stop: Callable[[], None],
    ) -> Generator[Flight]:
        """Registers a call that is about to be sent.

        Args:
            stop: notifies the node that no caller waits for the call any more.
        """
        flight = Flight(spec, self._loop.time(), copy_context().run, on_progress)
        self._flights[identifier] = flight
        self.outstanding[spec.id] += 1
        try:
            yield flight
        finally:
            self.outstanding[spec.id] -= 1
            if not self.outstanding[spec.id]:
                del self.outstanding[spec.id]
            if not flight.is_over:
                flight.is_over = True
                stop()
            if flight.is_reported:
                self._flights.pop(identifier, None)
            else:
                self._loop.call_later(REPORTED_S, self._flights.pop, identifier, None)

    def receive(self, message: OfCall, frames: list[bytes]) -> None:
        """Handles a node's message about a call. Ignores calls that are forgotten."""
        flight = self._flights.get(message.id)
        if flight is None:
            return
        match message:
            case Part():
                flight.parts.add(frames[1])
            case Whole():
                flight.end(frames[1])
            case End():
                flight.end()
            case Failed():
                flight.fail(messages.error_of(message))
            case Refused():
                flight.is_reported = True
                flight.fail(RefusedError(message.generation))
            case Waits():
                flight.waits = not message.is_over
            case Progress():
                if flight.on_progress and not flight.is_over:
                    flight.on_progress(message.fraction)
            case Report():
                flight.is_reported = True
                if flight.is_over:
                    del self._flights[message.id]
                flight.run(self._told_served, message.served)

    def lose_all(self) -> None:
        """Fails all calls after the connection was lost. Their outcomes are unknown."""
        flights, self._flights = self._flights, {}
        for flight in flights.values():
            waited: Served | None = None
            if not flight.is_reported:
                flight.is_reported, lost = True, self._lost(flight)
                if flight.waits and not flight.is_over:
                    waited = lost
                else:
                    flight.run(self._told_served, lost)
            flight.fail(NodeLostError(sent=True, waited=waited))

    def _lost(self, flight: Flight) -> Served:
        spec, lost = flight.spec, CapacityError(code="worker_lost")
        return Served(
            account_id=spec.account_id,
            deployment_id=spec.deployment,
            model=spec.model,
            outcome=CANCELLED if flight.is_over else lost.code,
            status=CANCELLED_STATUS if flight.is_over else lost.status,
            waited_s=0.0,
            seconds=self._loop.time() - flight.begun,
            counts={},
            version_id=spec.version,
        )
