"""Sends the events of background responses to clients."""

import asyncio
from collections.abc import AsyncGenerator, Sequence

from stoker.base.errors import NotFoundError
from stoker.platform.web.context import Platform
from stoker.runtime.interface import KEEP_ALIVE
from stoker.store.db import Session
from stoker.store.tables.jobs import UNFINISHED
from stoker.store.tables.responses import ResponseEvents, ResponseStatus, StoredResponse
from stoker.tenancy.keys.auth import Reach
from stoker.workloads.responses import content, replay, repository

_POLL_S = 0.4
_KEEP_ALIVE_POLLS = 40
_GROUPS = 16
"""Maximum number of groups of events that are read at once."""


async def get(
    session: Session, reach: Reach, response_id: str, *, lock: bool = False
) -> StoredResponse:
    """Raises `NotFoundError`."""
    row = await repository.get(session, reach, response_id, lock=lock)
    if row is None:
        raise _not_found()
    return row


async def events(
    platform: Platform, account_id: str, response_id: str, after: int
) -> AsyncGenerator[bytes]:
    """Yields the events of a response after a sequence number. Waits until it has ended.

    Raises `NotFoundError` if the response is deleted.
    """
    reach = Reach(account_id, None, "")
    yield b": response\n\n"
    async with platform.database.reading() as session:
        row = await get(session, reach, response_id)
    sealer = content.sealer(platform.secret, row)
    # The answer names the used values, and its beginning the requested ones.
    asked = sealer.unseal(row.request)["body"]
    response = content.response_of(platform.secret, row)
    waiting = response | {name: asked.get(name) for name in ("temperature", "top_p")}
    for number, (kind, fields) in enumerate(replay.beginning(waiting)):
        if number > after:
            yield replay.encoded(number, kind, fields)
    upcoming = max(after + 1, replay.IN_PROGRESS)
    polls = 0
    while True:
        status, groups = await _stored(platform, response_id, upcoming)
        if upcoming == replay.IN_PROGRESS and status != ResponseStatus.QUEUED:
            yield replay.encoded(upcoming, *replay.in_progress(waiting))
            upcoming += 1
        for group in groups:
            members: list[replay.Event] = sealer.unseal(group.events)
            for number, event in enumerate(members, group.last - len(members) + 1):
                if number >= upcoming:
                    yield replay.encoded(number, *event)
            upcoming = group.last + 1
        if groups:
            continue
        if status not in UNFINISHED:
            break
        polls += 1
        if polls % _KEEP_ALIVE_POLLS == 0:
            yield KEEP_ALIVE
        await asyncio.sleep(_POLL_S)
    for encoded in await _end(platform, reach, response_id, after):
        yield encoded


async def _end(platform: Platform, reach: Reach, response_id: str, after: int) -> Sequence[bytes]:
    """Returns the last event of a response that has ended. If no events were stored, returns those
    of its answer, too.
    """
    async with platform.database.reading() as session:
        row = await get(session, reach, response_id)
        stored = await repository.last_event(session, response_id)
    response = content.response_of(platform.secret, row)
    rest = [replay.last(response)]
    if stored is None:
        stored = replay.IN_PROGRESS
        rest = [*replay.output(response), *rest]
    numbered = enumerate(rest, stored + 1)
    return [replay.encoded(number, *event) for number, event in numbered if number > after]


async def _stored(
    platform: Platform, response_id: str, first: int
) -> tuple[str, Sequence[ResponseEvents]]:
    """Returns the status of a response, and groups of its events from a sequence number on.

    The status is read first: a response that has ended has all its events. From now on, the events
    of an unfinished response must not change. Raises `NotFoundError`.
    """

    async def read(session: Session) -> tuple[str, bool, Sequence[ResponseEvents]]:
        state = await repository.state(session, response_id)
        if state is None:
            raise _not_found()
        groups = await repository.events(session, response_id, first=first, limit=_GROUPS)
        return *state, groups

    async with platform.database.reading() as session:
        status, is_followed, groups = await read(session)
    if not groups or is_followed or status not in UNFINISHED:
        return status, groups
    async with platform.database.transaction() as session:
        # A worker that begins again discards the events, unless it finds this mark.
        await repository.mark_followed(session, response_id)
        status, _, groups = await read(session)
    return status, groups


def _not_found() -> NotFoundError:
    return NotFoundError(
        'Response not found. Only responses with "store": true are stored.',
        code="response_not_found",
    )
