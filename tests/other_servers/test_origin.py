"""Facts of `GET /info` that the database has."""

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update
from sqlalchemy.exc import NoResultFound

from stoker.registry.deployments import repository
from stoker.store.tables.artifacts import Artifact
from stoker.store.tables.deployments import Deployment
from tests.other_servers.conftest import ENCODER, MODELS
from tests.support.app import serving


async def test_commit_of_an_imported_model(tmp_path: Path) -> None:
    async with (
        serving(tmp_path / "data", source_dirs=[MODELS]) as app,
        await app.account() as client,
    ):
        body: dict[str, Any] = {"model": "m", "source": str(MODELS / ENCODER), "max_queue": 9}
        made = (await client.post("/v1/deployments", json=body)).raise_for_status().json()
        artifact = (await client.post("/v1/model-artifacts", json={"display_name": "a"})).json()
        database = app.platform.database
        async with database.reading() as session:
            assert await repository.limit_and_origin(session, made["id"]) == (9, None)
            with pytest.raises(NoResultFound):
                await repository.limit_and_origin(session, "dep_other")
        origin = {"hub": "h", "repo_id": "a/b", "revision": "main", "commit": "c0ffee"}
        async with database.transaction() as session:
            await session.execute(
                update(Artifact).where(Artifact.id == artifact["id"]).values(origin=origin)
            )
            await session.execute(update(Deployment).values(artifact_id=artifact["id"]))
        async with database.reading() as session:
            assert await repository.limit_and_origin(session, made["id"]) == (9, origin)
