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
from stoker.runtime.nodes.messages import (
    AnswerPart,
    CallAnswer,
    CallProgress,
    CallRefused,
    CallReport,
    End,
    Failed,
    OfCall,
    Waits,
)
from stoker.runtime.parts import AnswerParts
from stoker.runtime.specification import DeploymentSpec

REPORTED_S = 60.0
"""Maximum seconds between the end of a call and its report. Later reports are ignored."""


class LeaseRefusedError(Exception):
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
class NodeCall:
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
    parts: AnswerParts = field(default_factory=AnswerParts)

    def abandon(self) -> None:
        """Records that no caller waits for the call any more."""
        self.is_over = True

    def mark_reported(self) -> None:
        self.is_reported = True

    def set_waiting(self, *, waits: bool) -> None:
        self.waits = waits

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


class NodeCalls:
    def __init__(self, on_served: Callable[[Served], None]) -> None:
        """
        Args:
            on_served: is notified of the outcome of each call, in the context of its request.
        """
        self.outstanding = Counter[str]()
        """Maps a specification to its number of unanswered calls."""
        self._told_served = on_served
        self._calls: dict[int, NodeCall] = {}
        self._loop = asyncio.get_running_loop()

    @contextlib.contextmanager
    def open(
        self,
        identifier: int,
        spec: DeploymentSpec,
        on_progress: OnProgress | None,
        stop: Callable[[], None],
    ) -> Generator[NodeCall]:
        """Registers a call that is about to be sent.

        Args:
            stop: notifies the node that no caller waits for the call any more.
        """
        call = NodeCall(spec, self._loop.time(), copy_context().run, on_progress)
        self._calls[identifier] = call
        self.outstanding[spec.id] += 1
        try:
            yield call
        finally:
            self.outstanding[spec.id] -= 1
            if not self.outstanding[spec.id]:
                del self.outstanding[spec.id]
            if not call.is_over:
                call.abandon()
                stop()
            if call.is_reported:
                self._calls.pop(identifier, None)
            else:
                self._loop.call_later(REPORTED_S, self._calls.pop, identifier, None)

    def receive(self, message: OfCall, frames: list[bytes]) -> None:
        """Handles a node's message about a call. Ignores calls that are forgotten."""
        call = self._calls.get(message.id)
        if call is None:
            return
        match message:
            case AnswerPart():
                call.parts.add(frames[1])
            case CallAnswer():
                call.end(frames[1])
            case End():
                call.end()
            case Failed():
                call.fail(message.error.restored())
            case CallRefused():
                call.mark_reported()
                call.fail(LeaseRefusedError(message.generation))
            case Waits():
                call.set_waiting(waits=not message.is_over)
            case CallProgress():
                if call.on_progress and not call.is_over:
                    call.on_progress(message.fraction)
            case CallReport():
                call.mark_reported()
                if call.is_over:
                    del self._calls[message.id]
                call.run(self._told_served, message.served)

    def lose_all(self) -> None:
        """Fails all calls after the connection was lost. Their outcomes are unknown."""
        calls, self._calls = self._calls, {}
        for call in calls.values():
            waited: Served | None = None
            if not call.is_reported:
                call.mark_reported()
                lost = self._lost(call)
                if call.waits and not call.is_over:
                    waited = lost
                else:
                    call.run(self._told_served, lost)
            call.fail(NodeLostError(sent=True, waited=waited))

    def _lost(self, call: NodeCall) -> Served:
        spec, lost = call.spec, CapacityError(code="worker_lost")
        return Served(
            account_id=spec.account_id,
            deployment_id=spec.deployment,
            model=spec.model,
            outcome=CANCELLED if call.is_over else lost.code,
            status=CANCELLED_STATUS if call.is_over else lost.status,
            waited_s=0.0,
            seconds=self._loop.time() - call.begun,
            counts={},
            version_id=spec.version,
        )
