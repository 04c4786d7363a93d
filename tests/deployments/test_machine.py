"""Clients of two accounts act on deployments in any order and concurrently. The API always reports
the same state as a dict that models it.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import httpx
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from stoker.registry.deployments.directory import Directory
from tests.deployments.support import DEPLOYMENTS
from tests.support.databases import postgres_url
from tests.support.machines import DEPLOYMENTS_LIMIT, NER, AppBench, Machine, app_bench, try_out

__all__ = ["app_bench", "postgres_url"]

ARTIFACTS, KEYS = "/v1/model-artifacts", "/v1/api-keys"
Row = dict[str, Any]

picks, team_numbers = st.integers(0, 9), st.integers(0, 1)
names = st.sampled_from(("ner", "team/ner", "tagger"))
fields = {
    "readiness": st.sampled_from(("hot", "warm", "cold")),
    "engine": st.sampled_from(("auto", "torch")),
    "device": st.sampled_from(("auto", "cpu")),
    "dtype": st.sampled_from(("auto", "float32", "bfloat16")),
    "idle_timeout_s": st.integers(1, 5).map(float),
    "max_queue": st.integers(1, 9),
    "config": st.just({}),
}
part = st.integers(0, 3)
replicas = st.fixed_dictionaries({}, optional={"min": part, "max": st.integers(1, 3)})
changes = st.one_of(
    st.fixed_dictionaries({}, optional=fields | {"replicas": replicas}),
    st.fixed_dictionaries({"replicas": replicas}),
)
wishes = st.fixed_dictionaries({}, optional=fields)
bad = st.sampled_from(
    (
        {"max_queue": 0},
        {"model": "renamed"},
        {"readiness": "lukewarm"},
        {"engine": "none"},
        {"replicas": {"max": 0}},
        {"config": {"weight_format": "int4"}},
        {"max_queue": 3, "other": 1},
    )
)
patches = st.tuples(st.just("patch"), changes)
raised = st.integers(2, 3).map(lambda least: ("patch", {"replicas": {"min": least}}))
"""Patches with a minimum that is mostly above the deployment's maximum number of replicas."""
ops = st.one_of(
    st.sampled_from((("start", None), ("stop", None), ("delete", None))), patches, patches, raised
)
DEFAULTS: Row = {
    "readiness": "cold",
    "engine": "auto",
    "device": "auto",
    "dtype": "auto",
    "replicas": {"min": 0, "max": 1},
    "idle_timeout_s": 300.0,
    "max_queue": 256,
    "desired": "running",
}


def after(row: Row | None, op: tuple[str, Any]) -> tuple[int, Row | None]:
    """Returns an operation's expected status, and the deployment's expected state after it."""
    verb, body = op
    if row is None:
        return 404, None
    if verb == "delete":
        return 200, None
    if verb != "patch":
        return 200, row | {"desired": "running" if verb == "start" else "stopped"}
    new_fields = {name: value for name, value in body.items() if name != "config"}
    replicas = row["replicas"] | new_fields.pop("replicas", {})
    if replicas["min"] > replicas["max"]:
        return 400, row
    return 200, row | new_fields | {"replicas": replicas}


class Team:
    """Account and its expected state."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client
        self.rows: dict[str, Row] = {}
        self.gone: list[str] = []
        self.artifacts: set[str] = set()
        self.keys: dict[str, tuple[httpx.AsyncClient, set[str]]] = {}
        """Maps the id of a scoped key to a client with that key and the deployments that the key
        names.
        """
        self.repeated: dict[str, tuple[Row, str]] = {}
        """Maps an idempotency key to the request's body and the id of the created deployment."""

    def pick(self, pick: int) -> str | None:
        """Returns a deployment's id. Sometimes the deployment is deleted already."""
        known = [*self.rows, *self.gone[-2:]]
        return known[pick % len(known)] if known else None


class Deployments(Machine):
    def __init__(self, bench: AppBench) -> None:
        super().__init__(bench)
        self.bench = bench
        self.is_uploaded = self.is_restarted = False
        self.teams = [self._team() for _ in range(2)]

    def _team(self) -> Team:
        return Team(self.run(self.bench.app.account()))

    @initialize()
    def one_each(self) -> None:
        for team in range(2):
            self.create(team, "ner", {}, 0)

    # --- single operations ---

    @rule(team=team_numbers, model=names, wish=wishes, pick=picks)
    def create(self, team: int, model: str, wish: Row, pick: int) -> None:
        owner = self.teams[team]
        artifacts = sorted(owner.artifacts)
        if artifacts and pick % 2:
            source: Row = {"artifact_id": artifacts[pick % len(artifacts)]}
        else:
            source = {"source": str(NER)}
        body = {"model": model, **source, **wish}
        headers = {"idempotency-key": f"key-{pick}"} if pick > 5 else {}
        answer = self.run(owner.client.post(DEPLOYMENTS, json=body, headers=headers))
        if headers and (known := owner.repeated.get(f"key-{pick}")):
            if known[0] == body:
                assert answer.json()["id"] == known[1]
                assert answer.headers["idempotency-replayed"] == "true"
            else:
                assert answer.status_code == 409
                assert answer.json()["error"]["code"] == "idempotency_mismatch"
            return
        if any(row["model"] == model for row in owner.rows.values()):
            assert answer.json()["error"]["code"] == "model_exists"
        elif len(owner.rows) >= DEPLOYMENTS_LIMIT:
            assert answer.json()["error"]["code"] == "quota_exceeded"
        else:
            assert answer.status_code == 201, answer.text
            self._made(owner, answer, body)
            if headers:
                owner.repeated[f"key-{pick}"] = body, answer.json()["id"]

    def _made(self, one: Team, answer: httpx.Response, body: Row) -> None:
        identifier = answer.json()["id"]
        assert identifier not in one.rows
        assert identifier not in one.gone, "an id came back"
        settings = {name: value for name, value in body.items() if name != "config"}
        one.rows[identifier] = {"artifact_id": None, "source": None} | DEFAULTS | settings

    @rule(team=team_numbers, pick=picks, op=ops)
    def change(self, team: int, pick: int, op: tuple[str, Any]) -> None:
        owner = self.teams[team]
        if identifier := owner.pick(pick):
            status, row = after(owner.rows.get(identifier), op)
            answer = self.run(self._do(owner.client, identifier, op))
            assert answer.status_code == status, answer.text
            self._became(owner, identifier, row)

    async def _do(
        self, client: httpx.AsyncClient, identifier: str, op: tuple[str, Any]
    ) -> httpx.Response:
        verb, body = op
        url = f"{DEPLOYMENTS}/{identifier}"
        if verb == "patch":
            return await client.patch(url, json=body)
        return await (client.delete(url) if verb == "delete" else client.post(f"{url}/{verb}"))

    def _became(self, one: Team, identifier: str, row: Row | None) -> None:
        if row is not None:
            one.rows[identifier] = row
        elif identifier in one.rows:
            del one.rows[identifier]
            one.gone.append(identifier)

    @rule(team=team_numbers, pick=picks, body=bad)
    def change_badly(self, team: int, pick: int, body: Row) -> None:
        owner = self.teams[team]
        if identifier := owner.pick(pick):
            answer = self.run(owner.client.patch(f"{DEPLOYMENTS}/{identifier}", json=body))
            allowed = {400} if identifier in owner.rows else {400, 404}
            assert answer.status_code in allowed, answer.text

    @rule(team=team_numbers, pick=picks, op=ops)
    def meddle(self, team: int, pick: int, op: tuple[str, Any]) -> None:
        """Tries operations on another account's deployment, which all answer 404."""
        intruder, other = self.teams[team], self.teams[1 - team]
        if identifier := other.pick(pick):
            for known in (op, ("patch", {}), ("delete", None)):
                assert self.run(self._do(intruder.client, identifier, known)).status_code == 404
            url = f"{DEPLOYMENTS}/{identifier}"
            for path in ("", "/logs", "/events"):
                assert self.run(intruder.client.get(f"{url}{path}")).status_code == 404
            body = {"scope": "deployment", "deployment_ids": [identifier]}
            assert self.run(intruder.client.post(KEYS, json=body)).status_code == 404

    # --- artifacts and keys ---

    @rule(team=team_numbers)
    def upload(self, team: int) -> None:
        owner = self.teams[team]
        # Inspection runs in a separate process and costs as much as all the rest.
        if not self.is_uploaded:
            self.is_uploaded = True
            owner.artifacts.add(self.run(_uploaded(owner.client)))

    @rule(team=team_numbers, pick=picks)
    def delete_artifact(self, team: int, pick: int) -> None:
        owner = self.teams[team]
        if owner.artifacts:
            artifact_id = sorted(owner.artifacts)[pick % len(owner.artifacts)]
            answer = self.run(owner.client.delete(f"{ARTIFACTS}/{artifact_id}"))
            if self._used(owner, artifact_id):
                assert answer.json()["error"]["code"] == "artifact_in_use"
            else:
                assert answer.status_code == 200, answer.text
                owner.artifacts.remove(artifact_id)

    def _used(self, one: Team, artifact_id: str) -> bool:
        return any(row["artifact_id"] == artifact_id for row in one.rows.values())

    @rule(team=team_numbers, chosen=st.sets(picks, min_size=1, max_size=3))
    def create_key(self, team: int, chosen: set[int]) -> None:
        owner = self.teams[team]
        ids = sorted({identifier for pick in chosen if (identifier := owner.pick(pick))})
        body = {"scope": "deployment", "deployment_ids": ids}
        answer = self.run(owner.client.post(KEYS, json=body))
        if not ids:
            assert answer.status_code == 400
        elif not set(ids) <= set(owner.rows):
            assert answer.json()["error"]["code"] == "deployment_not_found"
        else:
            made = answer.raise_for_status().json()
            owner.keys[made["id"]] = self.bench.app.client(made["key"]), set(ids)

    @rule(team=team_numbers, pick=picks)
    def revoke_key(self, team: int, pick: int) -> None:
        owner = self.teams[team]
        if owner.keys:
            identifier = sorted(owner.keys)[pick % len(owner.keys)]
            client, _ = owner.keys.pop(identifier)
            self.run(owner.client.delete(f"{KEYS}/{identifier}")).raise_for_status()
            assert self.run(client.get("/v1/models")).status_code == 401

    # --- concurrent operations ---

    @rule(team=team_numbers, pick=picks, crossing=st.tuples(ops, ops))
    def cross(self, team: int, pick: int, crossing: tuple[Any, Any]) -> None:
        """Both answers and the resulting state match one of the two orders."""
        owner = self.teams[team]
        identifier = owner.pick(pick)
        if identifier is None:
            return
        orders: list[tuple[list[int], Row | None]] = []
        for order in ((0, 1), (1, 0)):
            row, statuses = owner.rows.get(identifier), [0, 0]
            for number in order:
                statuses[number], row = after(row, crossing[number])
            orders.append((statuses, row))

        async def work() -> tuple[list[int], httpx.Response]:
            both = (self._do(owner.client, identifier, op) for op in crossing)
            answers = await asyncio.gather(*both)
            shown = await owner.client.get(f"{DEPLOYMENTS}/{identifier}")
            return [answer.status_code for answer in answers], shown

        statuses, shown = self.run(work())
        for expected, row in orders:
            if expected == statuses and _is(shown, row):
                self._became(owner, identifier, row)
                return
        raise AssertionError((crossing, statuses, shown.text, orders))

    @rule(team=team_numbers, model=names, number=st.integers(2, 3))
    def create_at_once(self, team: int, model: str, number: int) -> None:
        owner = self.teams[team]
        body = {"model": model, "source": str(NER)}

        async def work() -> Sequence[httpx.Response]:
            return await asyncio.gather(
                *(owner.client.post(DEPLOYMENTS, json=body) for _ in range(number))
            )

        made = [answer for answer in self.run(work()) if answer.status_code == 201]
        is_taken = any(row["model"] == model for row in owner.rows.values())
        assert len(made) == (not is_taken and len(owner.rows) < DEPLOYMENTS_LIMIT)
        for answer in made:
            self._made(owner, answer, body)

    @rule(team=team_numbers, model=names)
    def deploy_while_its_artifact_is_deleted(self, team: int, model: str) -> None:
        owner = self.teams[team]
        free = sorted(
            artifact_id for artifact_id in owner.artifacts if not self._used(owner, artifact_id)
        )
        if not free:
            return
        body = {"model": model, "artifact_id": free[0]}

        async def work() -> Sequence[httpx.Response]:
            return await asyncio.gather(
                owner.client.post(DEPLOYMENTS, json=body),
                owner.client.delete(f"{ARTIFACTS}/{free[0]}"),
            )

        made, deleted = self.run(work())
        assert made.status_code == 201 or deleted.status_code == 200, (made.text, deleted.text)
        if made.status_code == 201:
            assert deleted.json()["error"]["code"] == "artifact_in_use"
            self._made(owner, made, body)
        else:
            owner.artifacts.remove(free[0])

    @rule()
    def restart(self) -> None:
        """A restarted server has all acknowledged changes and no others."""

        if self.is_restarted:
            return
        self.is_restarted = True

        async def work() -> None:
            await self.bench.stop()
            await self.bench.start()

        self.run(work())
        for owner in self.teams:
            owner.client = self.bench.app.client(_secret(owner.client))
            owner.keys = {
                name: (self.bench.app.client(_secret(client)), ids)
                for name, (client, ids) in owner.keys.items()
            }

    # --- invariants after each operation ---

    @invariant()
    def it_is_as_the_model_says(self) -> None:
        async def work() -> None:
            for owner in self.teams:
                listed = (await owner.client.get(DEPLOYMENTS)).raise_for_status().json()["data"]
                assert [row["id"] for row in listed] == sorted(owner.rows, reverse=True)
                assert len({row["model"] for row in listed}) == len(listed)
                for row in listed:
                    expected = owner.rows[row["id"]]
                    assert {name: row[name] for name in expected} == expected
                quotas = (await owner.client.get("/v1/quotas")).raise_for_status().json()["quotas"]
                used = {name: quotas[name]["used"] for name in ("deployments", "artifacts", "keys")}
                assert used == {
                    "deployments": len(owner.rows),
                    "artifacts": len(owner.artifacts),
                    "keys": 1 + len(owner.keys),
                }
                models = {row["model"] for row in owner.rows.values()}
                await _sees(owner.client, models)
                for client, ids in [*owner.keys.values()][-1:]:
                    await _sees(
                        client, {owner.rows[name]["model"] for name in ids & set(owner.rows)}
                    )
            directory = self.bench.app.parts.get(Directory)
            for owner in self.teams:
                for identifier in owner.gone:
                    assert directory.find(identifier) is None
                    assert self.bench.app.platform.runtime.stats(identifier) is None

        self.run(work())

    def teardown(self) -> None:
        async def work() -> None:
            for owner in self.teams:
                for identifier in owner.rows:
                    await owner.client.delete(f"{DEPLOYMENTS}/{identifier}")

        self.run(work())


def _is(found: httpx.Response, row: Row | None) -> bool:
    if row is None:
        return found.status_code == 404
    if found.status_code != 200:
        return False
    shown = found.json()
    return all(shown[name] == value for name, value in row.items())


async def _sees(client: httpx.AsyncClient, models: set[str]) -> None:
    listed = (await client.get("/v1/models")).raise_for_status().json()["data"]
    assert {entry["id"] for entry in listed} == models


async def _uploaded(client: httpx.AsyncClient) -> str:
    made = (await client.post(ARTIFACTS, json={"display_name": "ner"})).raise_for_status().json()
    uploads = f"{ARTIFACTS}/{made['id']}/uploads"
    opened = (await client.post(uploads)).raise_for_status().json()
    session = f"{uploads}/{opened['upload_id']}"
    for path in sorted(NER.iterdir()):
        content = path.read_bytes()
        (await client.put(f"{session}/files/{path.name}", content=content)).raise_for_status()
    completed = (await client.post(f"{session}/complete")).raise_for_status().json()
    assert completed["artifact"]["status"] == "ready", completed
    return made["id"]


def _secret(client: httpx.AsyncClient) -> str:
    return client.headers["authorization"].removeprefix("Bearer ")


@pytest.mark.fault("e2")
def test_api_is_as_a_dict(app_bench: AppBench) -> None:
    try_out(Deployments, app_bench, most=3, steps=15)
