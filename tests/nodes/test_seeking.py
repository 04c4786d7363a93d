"""Tests of a gateway's search for a node in a database without nodes."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from stoker.base.config import Settings
from stoker.base.errors import CapacityError
from stoker.runtime.interface import Call
from stoker.runtime.nodes import leases
from stoker.runtime.nodes.runtime import NodesRuntime
from stoker.runtime.specification import DeploymentSpec
from stoker.store.db import Database

SPEC = DeploymentSpec(
    id="ver_1", deployment_id="dep_1", account_id="acct_1", model="m", pipeline="p", source="s"
)
CALL = Call(task="t", items=["a"], parameters={}, single=True)
WAIT_S, MOST_TRIES = 1.0, 8


class Nowhere:
    """Placeholder for the model folders, which gateways do not use."""


@pytest.fixture
async def runtime(alone: str, database: Database, tmp_path: Path) -> AsyncIterator[NodesRuntime]:
    # The fixture `database` has created the tables.
    assert not database.is_sqlite
    settings = Settings(data_dir=tmp_path, database_url=alone, runtime="nodes")
    nodes_runtime = NodesRuntime(settings, Nowhere())  # type: ignore[arg-type]
    await nodes_runtime.start([])
    yield nodes_runtime
    await nodes_runtime.stop()


async def test_calls_that_wait_do_not_ask_the_database_all_the_time(
    runtime: NodesRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries, take = list[float](), leases.take

    async def counted(*given: Any, **how: Any) -> Any:
        tries.append(asyncio.get_running_loop().time())
        return await take(*given, **how)

    monkeypatch.setattr(leases, "take", counted)
    runtime.apply(SPEC, running=True)
    calls = [runtime.call("ver_1", CALL, wait_s=WAIT_S, timeout_s=5) for _ in range(20)]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [answer.code for answer in answers if isinstance(answer, CapacityError)] == [
        "no_node"
    ] * 20
    assert 1 <= len(tries) <= MOST_TRIES
