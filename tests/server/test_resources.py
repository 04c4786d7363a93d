"""A resource is a folder with a record. A server serves all records of its list."""

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import pytest
from fastapi import APIRouter
from fastapi.routing import APIRoute

from stoker.base.config import Settings
from stoker.inference.calls import Calls
from stoker.platform.parts import MissingPartError, ServerParts
from stoker.platform.resource import Resource, Resources
from stoker.server.janitor import Janitor
from stoker.server.resources import RESOURCES
from stoker.server.services import build_services
from stoker.store import db
from stoker.tenancy.usage.resource import RESOURCE as USAGE
from tests.deployments.routes import Place
from tests.server.tides.context import TideContext
from tests.server.tides.resource import RESOURCE as TIDES
from tests.support.app import App, serving
from tests.support.errors import error_of


@pytest.fixture(scope="module")
async def app(tmp_path_factory: pytest.TempPathFactory):
    async with serving(tmp_path_factory.mktemp("resources") / "data") as app:
        yield app


def with_record(resource: Resource) -> Resources:
    return Resources((*RESOURCES, resource))


def anonymous(app: App) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app.app), base_url="http://stoker")


class TestMadeUpResource:
    async def test_is_served_once_its_record_is_listed(self, tmp_path: Path):
        async with serving(tmp_path / "data", with_record(TIDES)) as app:
            steps = app.parts.get(TideContext).steps
            async with asyncio.timeout(10):
                while "task started" not in steps:
                    await asyncio.sleep(0.01)
            await Janitor(app.parts).sweep(db.now())
            assert "maintained" in steps
            async with anonymous(app) as client:
                assert (await client.get("/v1/tides")).status_code == 401
            async with await app.account() as client:
                assert (await client.get("/v1/tides")).json() == steps
            async with app.client(app.operator_key) as operator:
                metrics = (await operator.get("/metrics")).text
            assert f"stoker_tide_steps {len(steps)}.0" in metrics
            assert "/v1/tides" in app.app.openapi()["paths"]
        assert steps[-2:] == ["task stopped", "closed"]

    async def test_is_unknown_without_its_record(self, app: App):
        async with await app.account() as client:
            assert (await client.get("/v1/tides")).status_code == 404
        with pytest.raises(MissingPartError, match="TideContext"):
            app.parts.get(TideContext)


def keyed_routes() -> list[tuple[str, Place]]:
    return [
        (resource.name, Place(method, route.path))
        for resource in RESOURCES
        for router in resource.routers
        for route in router.routes
        if isinstance(route, APIRoute)
        for method in sorted(route.methods)
    ]


class TestRecords:
    def test_names_differ(self):
        names = [resource.name for resource in RESOURCES]
        assert len(set(names)) == len(names)
        tasks = [jobs.task for jobs in RESOURCES.jobs]
        for resource in RESOURCES:
            tasks += [*resource.tasks, *resource.peer_tasks]
        assert len(set(tasks)) == len(tasks)

    def test_each_folder_is_listed(self):
        """A folder with a record that is not in the list would not be served."""
        stoker = Path(__file__).parents[2] / "stoker"
        files = [path for path in stoker.rglob("resource.py") if path.parent.name != "platform"]
        # The record of the foundation is not in a folder.
        assert len(files) == len(RESOURCES.records) - 1

    async def test_each_route_is_served_and_needs_a_key(self, app: App):
        routes = keyed_routes()
        assert {name for name, _ in routes} == {
            resource.name for resource in RESOURCES if resource.routers
        }
        assert len(routes) > 100
        async with anonymous(app) as client:
            for name, place in routes:
                response = await client.request(place.method, place.url())
                assert response.status_code == 401, f"{name}: {place}"
                if place.method != "HEAD":
                    assert error_of(response)["code"] == "invalid_api_key", str(place)

    async def test_a_route_of_a_plain_router_needs_a_key(self, tmp_path: Path):
        """No route class checks the key here: the app requires it."""
        router = APIRouter()
        router.add_api_route("/v1/plain", lambda: {})
        resource = Resource(name="plain", routers=[router])
        async with serving(tmp_path / "data", with_record(resource)) as app:
            async with anonymous(app) as client:
                assert (await client.get("/v1/plain")).status_code == 401
            async with await app.account() as client:
                assert (await client.get("/v1/plain")).status_code == 200


@dataclass
class Moon:
    tides: object


class TestParts:
    def test_missing_one_is_named_at_the_start(self, tmp_path: Path):
        without = replace(RESOURCES, records=tuple(r for r in RESOURCES if r is not USAGE))
        with pytest.raises(
            MissingPartError, match="provides the part CreditCheck, which Platform needs"
        ):
            build_services(Settings(data_dir=tmp_path / "data"), without)

    def test_circle_is_named(self):
        def moon(parts: ServerParts) -> Moon:
            return Moon(parts.get(TideContext))

        def tides(parts: ServerParts) -> TideContext:
            parts.get(Moon)
            raise AssertionError

        parts = ServerParts()
        parts.provide(moon, tides)
        with pytest.raises(MissingPartError, match="Moon -> TideContext -> Moon"):
            parts.get(Moon)

    def test_each_is_built_once(self):
        def moon(_parts: ServerParts) -> Moon:
            return Moon(object())

        parts = ServerParts()
        parts.provide(moon)
        assert parts.get(Moon) is parts.get(Moon)
        assert parts.find(Moon) is parts.get(Moon)
        assert parts.find(Calls) is None
