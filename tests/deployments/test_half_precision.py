"""A deployment whose `auto` dtype is half precision: it shows the choice, and changes to float32
after an answer with NaN.
"""

from pathlib import Path
from typing import Any

import httpx
import pytest

from stoker.runtime.local.memory.measurements import Measurements
from stoker.wire.protocol import ChosenPrecision
from tests.artifacts.support import Uploading, eventually
from tests.deployments.support import DEPLOYMENTS, deploy
from tests.support.models import overflowing_bert
from tests.support.server import Server

PIPELINE = "feature-extraction"
CHOSEN = "'auto' computes in float16: as measured before."
CHANGED = (
    "'auto' computes in float32: an answer in float16 contained NaN or infinity. 'dtype' fixes the "
    "precision."
)
FINE, OVERFLOWS = "my name is", "clara"


def vectors(client: httpx.Client, model: str) -> Any:
    body = {"model": model, "inputs": [FINE, OVERFLOWS]}
    answer = client.post("/v1/feature-extraction", json=body, headers={"prefer": "wait=60"})
    return answer.raise_for_status().json()


def notices(client: httpx.Client, made: dict[str, Any]) -> list[dict[str, str]]:
    row = client.get(f"{DEPLOYMENTS}/{made['id']}").raise_for_status().json()
    return row["notices"]


def events(client: httpx.Client, made: dict[str, Any]) -> list[dict[str, str]]:
    url = f"{DEPLOYMENTS}/{made['id']}/events"
    rows = client.get(url).raise_for_status().json()["data"]
    return [row for row in rows if row["reason"] == "precision_changed"]


@pytest.mark.one_machine
def test_after_nan_the_deployment_computes_in_float32(server: Server, tmp_path: Path) -> None:
    with server.account() as client:
        session = Uploading.open(server, client)
        session.put_folder(overflowing_bert(tmp_path / "model", OVERFLOWS))
        session.complete().raise_for_status()
        # On a CPU, `auto` would choose float32. An earlier replica on a GPU has chosen float16.
        Measurements(server.data_dir / "cache").keep_precision(
            session.upload_id, f"{PIPELINE}-auto-auto", ChosenPrecision("float16", CHOSEN)
        )
        fields = {"pipeline": PIPELINE, "engine": "torch"}
        made = deploy(client, session.artifact_id, "overflows", **fields)
        path = f"{DEPLOYMENTS}/{made['id']}"
        body = {"model": "overflows", "inputs": FINE}
        answer = client.post(
            "/v1/feature-extraction", json=body, headers={"prefer": "wait=60"}
        ).raise_for_status()
        chosen = {"code": "precision", "message": CHOSEN}
        assert eventually(lambda: notices(client, made) == [chosen])
        assert events(client, made) == []

        known = deploy(client, session.artifact_id, "single", dtype="float32", **fields)
        exact = vectors(client, known["model"])
        assert answer.json() != exact[0], "it was computed in float16"
        for vector, expected in zip(vectors(client, "overflows"), exact, strict=True):
            assert vector == pytest.approx(expected)
        changed = {"code": "precision", "message": CHANGED}
        assert eventually(lambda: notices(client, made) == [changed])
        assert eventually(lambda: [event["message"] for event in events(client, made)] == [CHANGED])

        # Later replicas begin in float32.
        client.post(f"{path}/stop").raise_for_status()
        assert eventually(lambda: client.get(path).json()["status"] == "stopped")
        client.post(f"{path}/start").raise_for_status()
        for vector, expected in zip(vectors(client, "overflows"), exact, strict=True):
            assert vector == pytest.approx(expected)
        assert notices(client, made) == [changed]
        assert len(events(client, made)) == 1
        for row in (made, known):
            client.delete(f"{DEPLOYMENTS}/{row['id']}").raise_for_status()
