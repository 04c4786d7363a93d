"""HTTP requests take the same steps as the server's own calls: `Operation.run`."""

from pathlib import Path
from typing import Any

import pytest

from stoker.inference.operation import Answer, Operation
from stoker.inference.session import CallSession
from tests.support.app import serving


async def test_a_request_runs_the_operation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []
    run = Operation[Any].run

    async def recorded(self: Operation[Any], session: CallSession, body: Any) -> Answer:
        names.append(self.name)
        return await run(self, session, body)

    monkeypatch.setattr(Operation, "run", recorded)
    async with serving(tmp_path / "data") as app, await app.account() as client:
        body = {"model": "unknown", "inputs": "a [MASK]"}
        response = await client.post("/v1/fill-mask", json=body)
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"
    assert names == ["fill-mask"]
