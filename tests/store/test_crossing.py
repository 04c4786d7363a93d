"""Two writers of one row, in any order. Rows have no version numbers, so each writer locks the rows
that it changes. No change is lost silently: all answers hold as if the writers had run one after
the other.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from stoker.base.errors import InvalidRequestError, NotFoundError
from stoker.base.ids import Prefix, new_id
from stoker.platform.web.principal import Principal, Scope
from stoker.registry.artifacts import service as artifacts
from stoker.registry.artifacts.schemas import ArtifactCreate, ArtifactUpdate
from stoker.registry.deployments import service as deployments
from stoker.registry.deployments.context import DeploymentContext
from stoker.registry.deployments.schemas import DeploymentUpdate
from stoker.store.db import Session
from stoker.store.tables.accounts import Account
from stoker.store.tables.agents import Agent
from stoker.store.tables.artifacts import Artifact
from stoker.store.tables.deployments import Deployment, Desired
from stoker.store.tables.keys import ApiKey
from stoker.tenancy.accounts import service as accounts
from stoker.tenancy.accounts.schemas import AccountUpdate
from stoker.tenancy.keys import service as keys
from stoker.tenancy.keys.keyring import Keyring, digest
from stoker.tenancy.keys.sessions import Sessions
from stoker.workloads.agents import schemas as agent_schemas
from stoker.workloads.agents import service as agents
from stoker.workloads.agents.context import AgentContext
from tests.deployments.support import DEPLOYMENTS
from tests.support.databases import postgres_url
from tests.support.machines import NER, AppBench, Machine, app_bench, try_out

__all__ = ["app_bench", "postgres_url"]

BLOCKED_S = 0.03
"""Seconds after which a writer that waits for no lock has finished."""
numbers = st.integers(0, 1)
small = st.integers(0, 3)
quota = st.sampled_from(("keys", "agents", "runs"))
CHANGES = {
    "account": st.one_of(
        st.tuples(st.just("account"), st.just("name"), small),
        st.tuples(st.just("account"), quota, st.one_of(st.none(), small)),
    ),
    "artifact": st.tuples(st.just("artifact"), st.sampled_from(("name", "delete")), small),
    "deployment": st.tuples(
        st.just("deployment"),
        st.sampled_from(("min", "max", "queue", "start", "stop", "delete")),
        small,
    ),
    "agent": st.tuples(
        st.just("agent"), st.sampled_from(("name", "instructions", "max_steps")), small
    ),
    "key": st.tuples(st.just("key"), st.sampled_from(("rotate", "rotate", "revoke")), small),
}
"""Maps a kind of row to its possible changes."""
pairs = st.sampled_from(sorted(CHANGES)).flatmap(lambda row: st.tuples(*[CHANGES[row]] * 2))
Change = tuple[str, str, Any]
State = dict[str, Any] | None


@dataclass
class Writer:
    """Writer with an open transaction."""

    change: Change
    task: "asyncio.Task[None]"
    done: asyncio.Event
    """Set when the writer has done its work and is ready to commit."""
    ending: "asyncio.Future[bool]"
    refused: type[Exception] | None = None
    expected_refusal: type[Exception] | None = None
    """Error that the state at the time of the rejection required. Later commits change nothing."""
    made: Any = None


class RolledBackError(Exception):
    pass


@dataclass
class Ids:
    account: str
    artifact: str = ""
    deployment: str = ""
    agent: str = field(default_factory=lambda: new_id(Prefix.AGENT))
    key: str = ""


class Rows(Machine):
    def __init__(self, bench: AppBench) -> None:
        super().__init__(bench)
        self.bench = bench
        self.database = bench.app.platform.database
        self.writers: list[Writer | None] = [None, None]
        self.states: dict[str, State] = {}

    @initialize()
    def make(self) -> None:
        self.run(self._make())

    async def _make(self) -> None:
        client = await self.bench.app.account()
        account: str = client.account_id  # type: ignore[attr-defined]
        self.ids = ids = Ids(account)
        self.caller = Principal(
            key_id="key_tests",
            public_id="tests",
            scope=Scope.ACCOUNT,
            account_id=account,
            deployment_ids=frozenset(),
        )
        body = {"model": "m", "source": str(NER)}
        made = (await client.post(DEPLOYMENTS, json=body)).raise_for_status()
        ids.deployment = made.json()["id"]
        key = (await client.post("/v1/api-keys", json={"scope": "account"})).raise_for_status()
        ids.key = key.json()["id"]
        now = datetime.now(UTC)
        async with self.database.transaction() as session:
            quotas = self.bench.app.platform.quotas
            request = ArtifactCreate(display_name="0")
            ids.artifact = (await artifacts.create(session, quotas, account, request)).id
            session.add(
                Agent(
                    id=ids.agent,
                    account_id=account,
                    name="0",
                    model="m",
                    instructions="0",
                    tools=[],
                    max_steps=1,
                    config={},
                    created_at=now,
                    updated_at=now,
                )
            )
        self.states = {
            "account": {"name": "test", "quotas": {}},
            "artifact": {"name": "0"},
            "deployment": {"min": 0, "max": 1, "queue": 256, "desired": "running"},
            "agent": {"name": "0", "instructions": "0", "max_steps": 1},
            "key": {"digest": digest(key.json()["key"].split("-", 2)[2]), "previous": None},
        }

    # --- two writers ---

    @rule(number=numbers, change=st.one_of(*CHANGES.values()))
    def begin(self, number: int, change: Change) -> None:
        if self.writers[number] is None:
            self.run(self._begin(number, change))

    @rule(changes=pairs)
    def begin_both(self, changes: tuple[Change, Change]) -> None:
        if self.writers == [None, None]:
            for number in range(2):
                self.run(self._begin(number, changes[number]))

    async def _begin(self, number: int, change: Change) -> None:
        loop = asyncio.get_running_loop()
        done, ending = asyncio.Event(), loop.create_future()

        async def work() -> None:
            try:
                async with self.database.transaction() as session:
                    writer.made = await self._change(session, change)
                    await session.flush()
                    done.set()
                    if not await ending:
                        raise RolledBackError
            except (NotFoundError, InvalidRequestError) as error:
                writer.refused = type(error)
                _, writer.expected_refusal = after(self.states[change[0]], change, None)
                done.set()
            except RolledBackError:
                pass

        writer = Writer(change, asyncio.create_task(work()), done, ending)
        self.writers[number] = writer
        await self._waited(writer)

    async def _waited(self, writer: Writer) -> None:
        """Waits until a writer has done its work or is blocked by the other writer."""
        other_writers = [
            other for other in self.writers if other is not None and other is not writer
        ]
        is_alone = not any(other.done.is_set() and not other.task.done() for other in other_writers)
        is_held = not is_alone and self.bench.is_sqlite
        if is_held:
            return
        waiting = asyncio.create_task(writer.done.wait())
        await asyncio.wait([waiting], timeout=10 if is_alone else BLOCKED_S)
        waiting.cancel()
        assert writer.done.is_set() or not is_alone

    @rule(number=numbers, commits=st.sampled_from((True, True, True, False)))
    def end(self, number: int, commits: bool) -> None:
        self.run(self._end(number, commits))

    async def _end(self, number: int, commits: bool) -> None:
        writer = self.writers[number]
        if writer is None or not writer.done.is_set():
            return
        expected, refused = after(self.states[writer.change[0]], writer.change, writer.made)
        if writer.refused is None:
            assert refused is None, (writer, self.states)
        else:
            # The other's commit may have been known to the database before it was known here.
            assert writer.refused in (writer.expected_refusal, refused), (writer, self.states)
        writer.ending.set_result(commits)
        await writer.task
        if commits and writer.refused is None:
            self.states[writer.change[0]] = expected
        self.writers[number] = None
        other = self.writers[1 - number]
        if other is not None and not other.done.is_set():
            await self._waited(other)

    async def _change(self, session: Session, change: Change) -> Any:
        """Applies a change in the way the endpoints do in their transactions."""
        row, action, value = change
        app, ids = self.bench.app, self.ids
        keyring = app.parts.get(Keyring)
        match row, action:
            case "account", "name":
                await accounts.update(session, ids.account, AccountUpdate(name=str(value)))
            case "account", _:
                update = AccountUpdate(quotas={action: value})  # type: ignore[dict-item]
                await accounts.update(session, ids.account, update)
            case "artifact", "name":
                request = ArtifactUpdate(display_name=str(value))
                await artifacts.update(session, ids.account, ids.artifact, request)
            case "artifact", _:
                blobs = app.platform.blobs
                await artifacts.delete(session, blobs, ids.account, ids.artifact)
            case "deployment", ("start" | "stop") as verb:
                desired = Desired.RUNNING if verb == "start" else Desired.STOPPED
                context = app.parts.get(DeploymentContext)
                await deployments.set_desired(
                    session, context, ids.account, ids.deployment, desired
                )
            case "deployment", "delete":
                context = app.parts.get(DeploymentContext)
                await deployments.delete(session, context, ids.account, ids.deployment)
            case "deployment", _:
                await deployments.update(
                    session,
                    app.parts.get(DeploymentContext),
                    ids.account,
                    ids.deployment,
                    DeploymentUpdate.model_validate(deployment_body(action, value)),
                    folder=None,
                )
            case "agent", _:
                agent = await agents.get(session, ids.account, ids.agent, lock=True)
                body = {action: value + 1 if action == "max_steps" else str(value)}
                update = agent_schemas.AgentUpdate.model_validate(body)
                await agents.update(
                    session, app.parts.get(AgentContext), self.caller, agent, update
                )
            case "key", "rotate":
                _, secret = await keys.rotate(session, keyring, self.caller, ids.key, 3600)
                return digest(secret)
            case _:
                await keys.revoke(session, keyring, app.parts.get(Sessions), self.caller, ids.key)
        return None

    # --- invariants after each rule ---

    @invariant()
    def rows_are_what_was_answered(self) -> None:
        if self.states:
            self.run(self._check())

    async def _check(self) -> None:
        ids = self.ids
        async with self.database.reading() as session:
            for name, table in (
                ("account", Account),
                ("artifact", Artifact),
                ("deployment", Deployment),
                ("agent", Agent),
                ("key", ApiKey),
            ):
                row: Any = await session.get(table, getattr(ids, name))
                if name == "key" and row.revoked_at is not None:
                    row = None
                shown = SHOWN[name](row) if row is not None else None
                assert shown == self.states[name], name

    def teardown(self) -> None:
        self.run(self._finish())

    async def _finish(self) -> None:
        try:
            for number in (0, 1, 0):
                await self._end(number, True)
            if self.states:
                await self._check()
        finally:
            tasks = [writer.task for writer in self.writers if writer is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def deployment_body(what: str, value: int) -> dict[str, Any]:
    return (
        {"max_queue": value + 1}
        if what == "queue"
        else {"replicas": {what: max(value, int(what == "max"))}}
    )


def after(state: State, change: Change, made: Any) -> tuple[State, type[Exception] | None]:
    """Returns the state of a row after a change, and the error that rejects the change, if any."""
    _, action, value = change
    if state is None:
        return None, NotFoundError
    match change[0], action:
        case _, ("delete" | "revoke"):
            return None, None
        case _, "name":
            return state | {"name": str(value)}, None
        case "account", _:
            limits = state["quotas"] | {action: value}
            quotas = {name: limit for name, limit in limits.items() if limit is not None}
            return state | {"quotas": quotas}, None
        case "deployment", ("start" | "stop") as verb:
            return state | {"desired": "running" if verb == "start" else "stopped"}, None
        case "deployment", "queue":
            return state | {"queue": value + 1}, None
        case "deployment", _:
            bounds = state | {action: max(value, int(action == "max"))}
            if bounds["min"] > bounds["max"]:
                return state, InvalidRequestError
            return bounds, None
        case "agent", _:
            return state | {action: value + 1 if action == "max_steps" else str(value)}, None
    return {"digest": made, "previous": state["digest"]}, None


SHOWN: dict[str, Callable[[Any], dict[str, Any]]] = {
    "account": lambda row: {"name": row.name, "quotas": row.quotas},
    "artifact": lambda row: {"name": row.display_name},
    "deployment": lambda row: {
        "min": row.min_replicas,
        "max": row.max_replicas,
        "queue": row.max_queue,
        "desired": row.desired,
    },
    "agent": lambda row: {
        "name": row.name,
        "instructions": row.instructions,
        "max_steps": row.max_steps,
    },
    "key": lambda row: {"digest": row.secret_sha256, "previous": row.previous_sha256},
}


@pytest.mark.fault("f2")
def test_no_change_is_lost(app_bench: AppBench) -> None:
    try_out(Rows, app_bench, most=9)
