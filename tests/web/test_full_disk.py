"""A full disk is reported as such to every request that meets it."""

import errno
import sqlite3

import httpx
import pytest
from sqlalchemy.exc import OperationalError
from starlette.types import Receive, Scope, Send

from stoker.platform.web.http import LastResort
from tests.deployments.support import check_error


def of_sqlite() -> sqlite3.OperationalError:
    """Returns SQLite's error for a full disk."""
    connection = sqlite3.connect(":memory:")
    connection.execute("PRAGMA max_page_count = 1")
    try:
        connection.execute("CREATE TABLE t (a)")
    except sqlite3.OperationalError as error:
        return error
    finally:
        connection.close()
    raise AssertionError("there was room")


@pytest.mark.parametrize(
    "error",
    [
        OperationalError("INSERT", {}, of_sqlite()),
        # Error of a statement outside a transaction.
        of_sqlite(),
        OSError(errno.ENOSPC, "full"),
    ],
    ids=repr,
)
async def test_full_disk(error: Exception) -> None:
    async def app(_scope: Scope, _receive: Receive, _send: Send) -> None:
        raise error

    transport = httpx.ASGITransport(LastResort(app))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        answer = await client.post("/v1/api-keys", json={})
    check_error(answer, 503, "CapacityError", "insufficient_storage")


async def test_another_failure_is_none() -> None:
    async def app(_scope: Scope, _receive: Receive, _send: Send) -> None:
        raise OSError(errno.EIO, "broken")

    transport = httpx.ASGITransport(LastResort(app))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        answer = await client.post("/v1/api-keys", json={})
    check_error(answer, 500, "InternalError", "internal_error")
