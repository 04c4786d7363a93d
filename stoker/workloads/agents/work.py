"""Execution of runs: the `JobKind` of runs."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from stoker.base.errors import StokerError
from stoker.base.fairness import CURRENT_CALLER, Party
from stoker.platform.jobs.kind import Outcome
from stoker.platform.sealing import Sealer
from stoker.runtime.interface import OnProgress
from stoker.store import db
from stoker.store.db import Session
from stoker.store.tables.agents import Run, RunEvent, RunStatus
from stoker.store.tables.usage import Price
from stoker.tenancy.usage.prices import PriceList, hour_of
from stoker.workloads.agents import events, repository
from stoker.workloads.agents.context import AgentContext
from stoker.workloads.agents.events import JournalEvent
from stoker.workloads.agents.journal import LostError, append
from stoker.workloads.agents.tool_servers import ToolServers
from stoker.workloads.agents.transcript import RunInput, RunTranscript, ToolCall
from stoker.workloads.agents.turn import Turn

_PAGE = 256
"""Number of events per read."""


def read(sealer: Sealer, rows: Sequence[RunEvent]) -> list[JournalEvent]:
    return [
        JournalEvent(row.sequence, row.type, sealer.unseal(row.data), row.created_at)
        for row in rows
    ]


@dataclass(frozen=True)
class RunResult:
    """Result of working on a run: its answer, or the calls that wait for outputs."""

    transcript: RunTranscript
    sealer: Sealer
    waiting: list[ToolCall]
    written: list[JournalEvent]
    """Events that remain to be written before the final event."""
    values: dict[str, Any]


class AgentRunJob:
    table = Run

    def __init__(self, context: AgentContext) -> None:
        self._context = context
        self._followers = context.followers
        self._price: tuple[int, Price] | None = None
        """The hour and the price in force in it. Price versions begin on the hour."""
        self._leaving: set[asyncio.Task[None]] = set()

    async def perform(self, row: Run, on_progress: OnProgress) -> RunResult:
        context = self._context
        CURRENT_CALLER.set(Party(row.account_id, row.api_key))
        sealer = Sealer(context.secret, row.content_key)
        request = msgspec.convert(sealer.unseal(row.asked), RunInput)
        transcript, price = await self._known(row, sealer, request)
        writer = context.journal.writer(row, sealer, transcript.last)
        servers = ToolServers(context.outbound, context.settings.tool_timeout_s)
        turn = Turn(context, row, transcript, writer, servers, price=price)
        try:
            try:
                waiting = await turn.run()
            except Exception as error:
                if not isinstance(error, LostError):
                    # Events that led to the error are written before it.
                    await writer.commit()
                raise
            return RunResult(turn.transcript, sealer, waiting, await writer.take(), turn.counted())
        except LostError:
            # The new holder decides how the run continues. The awaited result never arrives.
            raise asyncio.CancelledError from None
        finally:
            # Closing sessions may take a second. No run has to wait for it.
            leaving = asyncio.create_task(servers.close())
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)

    async def _known(
        self, row: Run, sealer: Sealer, asked: RunInput
    ) -> tuple[RunTranscript, Price]:
        """Returns the run's progress and the current price of memory."""
        async with self._context.database.reading() as session:
            transcript = RunTranscript(asked)
            has_more = True
            while has_more:
                # Reads a page at a time, so that other work can run in between.
                page = await repository.milestones(
                    session, row.id, after=transcript.last, limit=_PAGE
                )
                transcript.add(read(sealer, page.rows))
                has_more = page.has_more
            if transcript.attempted > transcript.steps:
                # The previous holder may have left pieces of a message. The number of tries does
                # not show this: a server that stops and hands the run back also reverts the try.
                transcript.last = await repository.last_sequence(session, row.id)
            hour = hour_of(db.now())
            if self._price is None or self._price[0] != hour:
                self._price = hour, (await PriceList.read(session)).at(hour)
        return transcript, self._price[1]

    def outcome(self, row: Run, made: RunResult) -> Outcome:
        values = made.values | {"finish_reason": made.transcript.finish_reason}
        if made.waiting:
            sealed = made.sealer.seal([call.shown() for call in made.waiting])
            return Outcome(values | {"waiting_for": sealed}, RunStatus.REQUIRES_ACTION.value)
        return Outcome(values | {"output": made.sealer.seal(made.transcript.answer)})

    async def keep(self, session: Session, row: Run, made: RunResult) -> None:
        if made.waiting:
            calls = [call.shown() for call in made.waiting]
            event = (events.REQUIRES_ACTION, {"tool_calls": calls})
        else:
            event = (events.COMPLETED, {"usage": usage(row), "output": made.transcript.answer})
        await append(session, self._followers, row, made.sealer, [event], written=made.written)

    async def ended(self, session: Session, row: Run, error: StokerError | None) -> None:
        if error is None:
            return
        shown = {"code": error.code, "message": error.message}
        event = (events.FAILED, {"usage": usage(row), "error": shown})
        sealer = Sealer(self._context.secret, row.content_key)
        await append(session, self._followers, row, sealer, [event])

    async def discard(self, made: RunResult) -> None:
        """Does nothing: all written data belongs to the run."""


def usage(row: Run) -> dict[str, Any]:
    return {
        "steps": row.steps,
        "prompt_tokens": row.prompt_tokens,
        "completion_tokens": row.completion_tokens,
        "total_tokens": row.prompt_tokens + row.completion_tokens,
        "seconds": row.worked_ms / 1000,
        "microcredits": row.cost,
    }
