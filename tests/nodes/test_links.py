"""Tests of the connection between a gateway and a node over real TLS, with a scripted runtime."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import uvloop
from msgspec import structs

from stoker.base.errors import RateLimitError
from stoker.base.fairness import CURRENT_CALLER, Party, Tier
from stoker.media.media import Media
from stoker.runtime.interface import Call
from stoker.runtime.listening import Served
from stoker.runtime.nodes import identity, listener, messages, node_leases, probe
from stoker.runtime.nodes.host import NodeHost
from stoker.runtime.nodes.in_flight import LeaseRefusedError, NodeLostError
from stoker.runtime.nodes.leases import NodeRecord, Use
from stoker.runtime.nodes.messages import Changed, Hello, ModelLoaded, to_node
from stoker.runtime.nodes.node_client import NodeClient
from stoker.runtime.nodes.observing import node_of
from stoker.runtime.nodes.probe import NodeUnreachableError, Why, reach
from stoker.runtime.observed import DeploymentStats, MachineStats, NodeStatus, Reason, Status
from stoker.runtime.specification import DeploymentSpec, Readiness
from stoker.store.secret import ServerSecret
from stoker.wire.framing import framed
from stoker.wire.generation_request import Generation

SPEC = DeploymentSpec(
    id="ver_1", deployment_id="dep_1", account_id="acct_1", model="m", pipeline="p", source="s"
)
CALL = Call(task="t", items=["a"], parameters={}, single=True)
TIMES: dict[str, Any] = {"wait_s": 1.0, "timeout_s": 5.0}


class Answering:
    """The part of a `Runtime` that a node uses."""

    def __init__(self) -> None:
        self.applied: list[tuple[DeploymentSpec, bool]] = []
        self.removed: list[str] = []
        self.calls: list[tuple[Call | Generation, Party, float]] = []
        self.cancelled = asyncio.Event()
        self.loaded = asyncio.Event()
        self.host: NodeHost

    def apply(self, spec: DeploymentSpec, *, running: bool) -> None:
        self.applied.append((spec, running))

    async def remove(self, spec_id: str) -> None:
        self.removed.append(spec_id)

    async def call(self, spec_id: str, call: Any, **given: Any) -> bytes:
        self.calls.append((call, CURRENT_CALLER.get(), given["timeout_s"]))
        match call.task:
            case "full":
                raise RateLimitError("Full.", code="queue_full", retry_after_s=3.5)
            case "fault":
                raise ZeroDivisionError
            case "loading":
                self.host.waits()
                await self.loaded.wait()
                self.host.given()
                await asyncio.sleep(60)
            case "slow":
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    self.cancelled.set()
                    self.host.served(served("cancelled"))
                    raise
        if given["on_progress"]:
            given["on_progress"](0.5)
        self.host.served(served("ok"))
        return b"".join(
            bytes(item.content) if isinstance(item, Media) else item.encode() for item in call.items
        )

    async def stream(self, spec_id: str, call: Any, **given: Any) -> AsyncGenerator[bytes]:
        self.calls.append((call, CURRENT_CALLER.get(), given["timeout_s"]))
        for number in range(3):
            yield f"{number}".encode()
        if call.task == "slow":
            try:
                await asyncio.sleep(60)
            finally:
                self.cancelled.set()

    waiting = 7

    def stats(self, spec_id: str) -> DeploymentStats:
        return DeploymentStats(
            status=Status.READY, reason=Reason.LOADED, message="", calls=self.waiting
        )

    def machine(self) -> MachineStats:
        return MachineStats(cores=3)

    def why_not_ready(self) -> str | None:
        return None

    async def log_lines(self, deployment_id: str, limit: int) -> list[str]:
        return [deployment_id, str(limit)]


def served(outcome: str) -> Served:
    return Served(
        account_id="acct_1",
        deployment_id="dep_1",
        model="m",
        outcome=outcome,
        waited_s=0.0,
        seconds=1.0,
        counts={"images": 2},
    )


@dataclass
class Heard:
    """Records the messages from nodes to a gateway."""

    served: list[tuple[Served, Party]] = field(default_factory=list)
    changed: list[Changed] = field(default_factory=list)
    loaded: list[ModelLoaded] = field(default_factory=list)
    anything: asyncio.Event = field(default_factory=asyncio.Event)

    def on_connected(self, node: NodeClient) -> None:
        self.anything.set()

    def on_observed(self) -> None:
        self.anything.set()

    def on_changed(self, change: Changed) -> None:
        self.changed.append(change)
        self.anything.set()

    def on_loaded(self, loaded: ModelLoaded) -> None:
        self.loaded.append(loaded)

    def on_served(self, call: Served) -> None:
        self.served.append((call, CURRENT_CALLER.get()))
        self.anything.set()

    async def until(self, holds: Any) -> None:
        async with asyncio.timeout(10):
            while not holds():
                self.anything.clear()
                await self.anything.wait()


@dataclass
class Bench:
    secret: ServerSecret
    runtime: Answering
    host: NodeHost
    record: NodeRecord
    adapters: list[str]

    @contextlib.asynccontextmanager
    async def gateway(self, **changed: Any) -> AsyncIterator[tuple[NodeClient, Heard]]:
        heard = Heard()
        secret = changed.pop("secret", self.secret)
        node = NodeClient(replace(self.record, **changed), secret, "srv_1", heard)
        try:
            yield node, heard
        finally:
            await node.close()


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with benched(tmp_path) as made:
        yield made


@contextlib.asynccontextmanager
async def benched(folder: Path) -> AsyncIterator[Bench]:
    """Starts a node host with the test's runtime."""
    secret, runtime, adapters = ServerSecret(folder), Answering(), list[str]()

    async def have_adapter(_spec: DeploymentSpec, name: Any) -> None:
        adapters.append(name.folder)

    node_identity = identity.new_identity("node_1")
    token = identity.token(secret, node_identity.certificate)
    host = runtime.host = NodeHost(
        runtime,  # type: ignore[arg-type]
        "node_1",
        node_identity,
        token,
        have_adapter=have_adapter,
        sources=lambda: ["s"],
    )
    port = await host.listen("127.0.0.1", 0)
    record = NodeRecord(
        id="node_1",
        name="n",
        address=f"127.0.0.1:{port}",
        certificate=node_identity.certificate,
        is_draining=False,
        pid=1,
        version="0",
        python="3",
        machine=MachineStats(),
        started_at=datetime.now(UTC),
        seen_at=datetime.now(UTC),
    )
    yield Bench(secret, runtime, host, record, adapters)
    await host.close()


async def until(holds: Any) -> None:
    """Waits until a condition of the node holds."""
    async with asyncio.timeout(10):
        while not holds():
            await asyncio.sleep(0.01)


async def found(what: Any) -> Any:
    """Returns the value of the function once it is true."""
    await until(what)
    return what()


@contextlib.asynccontextmanager
async def leased(bench: Bench) -> AsyncIterator[tuple[NodeClient, Heard]]:
    """Connects to the node and sends it a specification that it may run."""
    async with bench.gateway() as (node, heard):
        await heard.until(lambda: node.is_connected)
        node.put(SPEC, running=True, generation=5, is_change=True)
        await heard.until(lambda: "ver_1" in node.stats)
        yield node, heard


async def test_a_call_and_what_it_came_to(bench: Bench) -> None:
    async with leased(bench) as (node, heard):
        sender = Party("acct_1", "key_1", tier=Tier.FLEX)
        party = CURRENT_CALLER.set(sender)
        media = Media("image", content=b"\x00pixels")
        progress: list[float] = []
        call = structs.replace(CALL, items=["a", media])
        answer = await node.call(SPEC, 5, call, on_progress=progress.append, **TIMES)
        CURRENT_CALLER.reset(party)
        assert answer == b"a\x00pixels"
        assert progress == [0.5]
        received, caller, timeout_s = bench.runtime.calls[0]
        assert (received.task, caller, timeout_s) == ("t", sender, 5.0)
        # Exactly once, with the party of the request.
        [(record, charged_party)] = heard.served
        assert (record, charged_party) == (served("ok"), sender)
        assert (node.machine.cores, node.sources) == (3, frozenset({"s"}))
        assert await node.tail("dep_1", 9) == ["dep_1", "9"]
        await node.drop("ver_1")
        assert bench.runtime.removed == ["ver_1"]
        await heard.until(lambda: "ver_1" not in node.stats)


async def test_errors_arrive_as_they_are(bench: Bench) -> None:
    async with leased(bench) as (node, _):
        with pytest.raises(RateLimitError, match="Full") as caught:
            await node.call(SPEC, 5, structs.replace(CALL, task="full"), **TIMES)
        assert (caught.value.code, caught.value.retry_after_s) == ("queue_full", 3.5)
        with pytest.raises(Exception, match="Internal server error") as other:
            await node.call(SPEC, 5, structs.replace(CALL, task="fault"), **TIMES)
        assert type(other.value).__name__ == "InternalError"


async def test_parts_come_in_order(bench: Bench) -> None:
    async with leased(bench) as (node, _):
        parts = [part async for part in node.stream(SPEC, 5, CALL, **TIMES)]
        # Parts that arrive together are passed on together.
        assert b"".join(parts) == b"012"


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_who_goes_away_ends_the_work(bench: Bench, is_streamed: bool) -> None:
    async with leased(bench) as (node, heard):
        slow = structs.replace(CALL, task="slow")

        async def asked() -> None:
            if is_streamed:
                async for _ in node.stream(SPEC, 5, slow, **TIMES):
                    heard.anything.set()
            else:
                await node.call(SPEC, 5, slow, **TIMES)

        task = asyncio.create_task(asked())
        await until(lambda: bench.runtime.calls)
        assert node.calls("ver_1") >= 1
        task.cancel()
        async with asyncio.timeout(10):
            await bench.runtime.cancelled.wait()
        assert not node.outstanding
        if not is_streamed:
            await heard.until(lambda: heard.served)
            assert heard.served[0][0].outcome == "cancelled"


async def test_an_older_lease_is_refused(bench: Bench) -> None:
    async with leased(bench) as (node, _):
        with pytest.raises(LeaseRefusedError) as older:
            await node.call(SPEC, 4, CALL, **TIMES)
        assert older.value.generation == 5
        with pytest.raises(LeaseRefusedError) as unknown:
            await node.call(replace(SPEC, id="ver_2"), 9, CALL, **TIMES)
        assert unknown.value.generation == 0
        # The node needs the specification of a newer lease, because it may have changed.
        with pytest.raises(LeaseRefusedError) as newer:
            await node.call(SPEC, 6, CALL, **TIMES)
        assert newer.value.generation == 0
        node.put(SPEC, running=True, generation=6, is_change=False)
        assert await node.call(SPEC, 6, CALL, **TIMES) == b"a"
        with pytest.raises(LeaseRefusedError):
            await node.call(SPEC, 5, CALL, **TIMES)


async def test_a_new_lease_is_of_what_is_wanted_now(bench: Bench) -> None:
    """A node without a lease is not notified of changes, as of a deployment that was stopped and
    started again.
    """
    async with leased(bench) as (node, _):
        node.put(SPEC, running=False, generation=5, is_change=True)
        await until(lambda: not bench.runtime.applied[-1][1])
        changed = replace(SPEC, max_queue=7)
        # The node may read the lease from the database before a gateway reports it.
        bench.host.leases.learn({"ver_1": 8})
        with pytest.raises(LeaseRefusedError):
            await node.call(changed, 8, CALL, **TIMES)
        node.put(changed, running=True, generation=8, is_change=False)
        assert await node.call(changed, 8, CALL, **TIMES) == b"a"
        assert bench.runtime.applied[-1] == (changed, True)


async def test_without_its_lease_a_node_begins_nothing(bench: Bench) -> None:
    now = 1000.0
    bench.host.leases.clock = lambda: now
    async with leased(bench) as (node, _):
        node.put(replace(SPEC, readiness=Readiness.HOT), running=True, generation=5, is_change=True)
        await until(lambda: bench.runtime.applied[-1][0].readiness is Readiness.HOT)
        assert bench.host.leases.learn({"ver_1": 5}) == []
        now += node_leases.SETTLING_S + 1
        assert bench.host.leases.learn({}) == []
        spec, running = bench.runtime.applied[-1]
        assert (spec.readiness, spec.min_replicas, running) == (Readiness.COLD, 0, True)
        with pytest.raises(LeaseRefusedError):
            await node.call(SPEC, 5, CALL, **TIMES)
        # Only a newer lease resumes it.
        node.put(SPEC, running=True, generation=5, is_change=False)
        node.put(SPEC, running=True, generation=7, is_change=False)
        assert await node.call(SPEC, 7, CALL, **TIMES) == b"a"


async def test_what_is_made_of_leases(bench: Bench) -> None:
    """Leases report their memory use and whether they may be evicted, for an external placer."""
    now = 1000.0
    bench.host.leases.clock = lambda: now
    mib, bench.runtime.waiting = 1 << 20, 0
    async with leased(bench) as (node, _):
        bench.host.leases.learn({"ver_1": 5})
        # The deployment was called a moment ago.
        assert await node.call(SPEC, 5, CALL, **TIMES) == b"a"
        [use] = bench.host.leases.uses().values()
        assert (use.is_kept, use.idle_at) == (False, None)
        now += node_leases.FRESH_S
        assert [lease_use.idle_at for lease_use in bench.host.leases.uses().values()] == [1000.0]
        warm = replace(SPEC, readiness=Readiness.WARM, memory_bytes=mib, min_replicas=2)
        node.put(warm, running=True, generation=5, is_change=True)
        await until(lambda: bench.runtime.applied[-1][0] == warm)
        assert bench.host.leases.uses() == {
            5: Use(memory_bytes=2 * mib, is_kept=True, idle_at=1000)
        }
        hot = replace(warm, readiness=Readiness.HOT)
        node.put(hot, running=True, generation=5, is_change=True)
        await until(lambda: bench.runtime.applied[-1][0] == hot)
        assert [lease_use.idle_at for lease_use in bench.host.leases.uses().values()] == [None]
        # Without a lease the node reports nothing.
        now += node_leases.SETTLING_S + 1
        bench.host.leases.learn({})
        assert bench.host.leases.uses() == {}


async def test_what_is_no_more_is_forgotten_unless_it_has_a_lease(bench: Bench) -> None:
    now = 1000.0
    bench.host.leases.clock = lambda: now
    async with leased(bench) as (node, heard):
        assert bench.host.leases.unleased() == []
        await bench.host.leases.forget(["ver_1", "ver_2"])
        assert bench.runtime.removed == []
        now += node_leases.SETTLING_S + 1
        bench.host.leases.learn({})
        assert [spec.id for spec in bench.host.leases.unleased()] == ["ver_1"]
        # A new lease arrives before the lookup ends.
        node.put(SPEC, running=True, generation=6, is_change=False)
        assert await node.call(SPEC, 6, CALL, **TIMES) == b"a"
        await bench.host.leases.forget(["ver_1"])
        assert bench.runtime.removed == []
        now += node_leases.SETTLING_S + 1
        bench.host.leases.learn({})
        await bench.host.leases.forget(["ver_1"])
        assert bench.runtime.removed == ["ver_1"]
        assert bench.host.leases.specs() == []
        await heard.until(lambda: "ver_1" not in node.stats)
        node.put(SPEC, running=True, generation=7, is_change=False)
        assert await node.call(SPEC, 7, CALL, **TIMES) == b"a"


async def test_what_nobody_calls_is_given_back(bench: Bench) -> None:
    now = 1000.0
    bench.host.leases.clock = lambda: now
    async with leased(bench):
        bench.runtime.stats = lambda _spec_id: DeploymentStats(  # type: ignore[method-assign]
            status=Status.IDLE, reason=Reason.CREATED, message=""
        )
        # No gateway has sent the second specification.
        assert bench.host.leases.learn({"ver_1": 5, "ver_2": 6}) == []
        now += node_leases.IDLE_S + 1
        assert bench.host.leases.learn({"ver_1": 5, "ver_2": 6}) == [5, 6]


async def test_a_node_that_goes_fails_what_was_under_way(bench: Bench) -> None:
    async with leased(bench) as (node, heard):
        task = asyncio.create_task(node.call(SPEC, 5, structs.replace(CALL, task="slow"), **TIMES))
        await until(lambda: bench.runtime.calls)
        await bench.host.close()
        with pytest.raises(NodeLostError) as caught:
            await task
        assert caught.value.sent
        [(record, _)] = heard.served
        assert (record.outcome, record.status) == ("worker_lost", 503)
        with pytest.raises(NodeLostError) as again:
            await node.call(SPEC, 5, CALL, **TIMES)
        assert not again.value.sent


@pytest.mark.parametrize("is_given", [False, True])
async def test_what_has_waited_there_may_be_asked_elsewhere(bench: Bench, is_given: bool) -> None:
    """A call that waits on a lost node may be retried on another node until a replica receives it.
    Until then its outcome is not reported.
    """
    async with leased(bench) as (node, heard):
        task = asyncio.create_task(
            node.call(SPEC, 5, structs.replace(CALL, task="loading"), **TIMES)
        )
        [call] = await found(lambda: [*node._calls._calls.values()])
        await until(lambda: call.waits)
        if is_given:
            bench.runtime.loaded.set()
            await until(lambda: not call.waits)
        await bench.host.close()
        with pytest.raises(NodeLostError) as caught:
            await task
        assert caught.value.sent
        outcomes = [record.outcome for record, _ in heard.served]
        if is_given:
            assert (outcomes, caught.value.waited) == (["worker_lost"], None)
        else:
            assert caught.value.waited
            assert (outcomes, caught.value.waited.outcome) == ([], "worker_lost")


async def test_a_node_that_drains_says_so(bench: Bench) -> None:
    async with leased(bench) as (node, heard):
        assert node.takes_work
        task = asyncio.create_task(node.call(SPEC, 5, structs.replace(CALL, task="slow"), **TIMES))
        await until(lambda: bench.runtime.calls)
        draining = asyncio.create_task(bench.host.drain(30))
        await heard.until(lambda: not node.takes_work)
        assert not draining.done()
        task.cancel()
        await draining


async def never_connected(bench: Bench, **changed: Any) -> None:
    async with bench.gateway(**changed) as (node, _):
        await asyncio.sleep(0.3)
        assert not node.is_connected


async def test_another_secret_is_nobodys(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    await never_connected(bench, secret=ServerSecret(tmp_path / "other"))


async def test_another_certificate_is_another_node(bench: Bench) -> None:
    await never_connected(bench, certificate=identity.new_identity("node_1").certificate)


async def test_no_certificate_at_all(bench: Bench) -> None:
    await never_connected(bench, certificate="nonsense")


async def test_a_gateway_of_another_version_is_told(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    reader, writer = await connected(bench)
    token = identity.token(bench.secret, bench.record.certificate)
    writer.writelines(framed(to_node.pack(Hello(messages.VERSION + 1, token, "srv_2"))))
    assert b"welcome" in await reader.read()
    writer.close()
    newest = messages.VERSION
    assert f"gateway rejected: it speaks version {newest + 1} of the protocol" in caplog.text


async def test_a_node_of_another_version_is_not_used(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    newest = messages.VERSION
    monkeypatch.setattr(
        messages, "welcome", lambda node_id: messages.Welcome(newest + 2, node_id, newest + 1)
    )
    async with bench.gateway() as (node, _):
        await until(lambda: node.problem)
        problem = (
            f"The node cannot be used: it speaks versions {newest + 1} to {newest + 2} of the "
            f"protocol, and this release version {newest}."
        )
        assert node.problem == problem
        stats = node_of(node, [], {})
        assert (stats.status, stats.problem) == (NodeStatus.UNREACHABLE, problem)
        await until(lambda: "node cannot be reached: it speaks versions" in caplog.text)
    assert "Traceback" not in caplog.text


class TestProbe:
    async def test_is_welcomed_and_told_nothing(self, bench: Bench) -> None:
        assert 0 < await reach(bench.record, bench.secret) < 5
        assert bench.host._gateways == []
        async with leased(bench) as (node, _):
            await reach(bench.record, bench.secret)
            assert await node.call(SPEC, 5, CALL, **TIMES) == b"a"
            assert len(bench.host._gateways) == 1

    async def test_another_secret(self, bench: Bench, tmp_path: Path) -> None:
        (tmp_path / "other").mkdir()
        await refused(Why.REFUSED, bench.record, ServerSecret(tmp_path / "other"))

    async def test_another_certificate(self, bench: Bench) -> None:
        other = identity.new_identity("node_1").certificate
        await refused(Why.ANOTHER, replace(bench.record, certificate=other), bench.secret)

    async def test_another_version(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        newest = messages.VERSION
        monkeypatch.setattr(
            messages, "welcome", lambda node_id: messages.Welcome(newest + 1, node_id)
        )
        await refused(Why.VERSION, bench.record, bench.secret)

    async def test_nobody_listens(self, bench: Bench) -> None:
        await bench.host.close()
        await refused(Why.NO_ANSWER, bench.record, bench.secret)

    async def test_it_takes_a_connection_and_says_nothing(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(probe, "TIMEOUT_S", 0.3)
        with socket.create_server(("127.0.0.1", 0)) as silent:
            address = f"127.0.0.1:{silent.getsockname()[1]}"
            await refused(Why.NO_ANSWER, replace(bench.record, address=address), bench.secret)

    async def test_what_listens_speaks_no_tls(self, bench: Bench) -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            writer.close()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            await refused(Why.ANOTHER, replace(bench.record, address=address), bench.secret)


async def refused(why: Why, record: NodeRecord, secret: ServerSecret) -> None:
    with pytest.raises(NodeUnreachableError) as caught:
        await reach(record, secret)
    assert caught.value.why is why


@pytest.mark.parametrize(
    "said",
    [b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64, b"\x01\x00\x00\x00" + b"\xff" * 8],
    ids=["HTTP", "many frames", "many bytes"],
)
async def test_what_is_no_greeting_ends_it(bench: Bench, said: bytes) -> None:
    reader, writer = await connected(bench)
    writer.write(said)
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(5):
            assert await reader.read() == b""
    writer.close()


async def test_who_says_nothing_is_cut_off(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "GREETING_S", 0.2)
    reader, writer = await connected(bench)
    async with asyncio.timeout(5):
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
    writer.close()


async def test_nothing_is_said_in_the_clear(bench: Bench) -> None:
    host, _, port = bench.record.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    token = identity.token(bench.secret, bench.record.certificate)
    writer.writelines(framed(to_node.pack(Hello(messages.VERSION, token, "srv_2"))))
    with contextlib.suppress(ConnectionError):
        assert b"welcome" not in await reader.read()
    writer.close()


class TestManyConnections:
    """The node host's connection limits with both event loops. Nodes run on uvloop."""

    @pytest.fixture(
        params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
    )
    def runner(self, request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
        with asyncio.Runner(loop_factory=request.param) as runner:
            yield runner

    def test_idle_sockets_are_bounded_and_do_not_lock_gateways_out(
        self,
        runner: asyncio.Runner,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        monkeypatch.setattr(listener, "GREETING_S", 6.0)
        most, attempts = listener.MOST_UNKNOWN, 3 * listener.MOST_UNKNOWN

        async def check() -> None:
            async with benched(tmp_path) as bench, leased(bench) as (node, _):
                before, host_listener = open_files(), bench.host.listener
                with contextlib.ExitStack() as idle:
                    # In a thread: the host accepts connections meanwhile, so its backlog does not
                    # fill.
                    for client in await asyncio.to_thread(open_idle, address_of(bench), attempts):
                        idle.enter_context(client)
                    await until(lambda: host_listener.refused == attempts - most)
                    assert open_files() - before - attempts <= most + SLACK
                    assert (len(host_listener.unknown), len(host_listener.known)) == (most, 1)
                    # The connected gateway is not disturbed. A new one is rejected.
                    assert await node.call(SPEC, 5, CALL, **TIMES) == b"a"
                    await closed_at_once(bench)
                    await until(lambda: not host_listener.unknown)
                    # All idle clients still hold their end of the connection.
                    await until(lambda: open_files() - before - attempts <= SLACK)
                    assert await reach(bench.record, bench.secret) < 5
                    async with bench.gateway() as (other, heard):
                        await heard.until(lambda: other.is_connected)
                        assert len(host_listener.known) == 2
                    assert await node.call(SPEC, 5, CALL, **TIMES) == b"a"
                await until(lambda: len(host_listener.known) == 1)

        runner.run(check())
        warnings = [each for each in caplog.records if "too many connections" in each.message]
        assert len(warnings) == 1

    def test_places_are_freed_however_a_connection_ends(
        self, runner: asyncio.Runner, tmp_path: Path
    ) -> None:
        async def check() -> None:
            async with benched(tmp_path) as bench:
                host_listener = bench.host.listener
                for payload in (b"", b"no TLS at all", b"\x16\x03\x01\x02\x00\x01"):
                    with socket.create_connection(address_of(bench)) as gone:
                        gone.sendall(payload)
                        await asyncio.sleep(0.05)
                    # Long before the timeout of a greeting.
                    await until(lambda: not host_listener.unknown)
                _, writer = await connected(bench)
                await until(lambda: host_listener.unknown)
                writer.close()
                await until(lambda: not host_listener.unknown)
                await refused(Why.REFUSED, bench.record, ServerSecret(tmp_path / "other"))
                await until(lambda: not host_listener.unknown)

        (tmp_path / "other").mkdir()
        runner.run(check())

    def test_gateways_count_for_the_whole(
        self, runner: asyncio.Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(listener, "MOST_CONNECTIONS", 1)

        async def check() -> None:
            async with benched(tmp_path) as bench:
                async with leased(bench) as (node, _):
                    await closed_at_once(bench)
                    assert bench.host.listener.refused == 1
                    assert await node.call(SPEC, 5, CALL, **TIMES) == b"a"
                await until(lambda: not bench.host.listener.known)
                await reach(bench.record, bench.secret)

        runner.run(check())


async def closed_at_once(bench: Bench) -> None:
    before = bench.host.listener.refused
    with pytest.raises(NodeUnreachableError, match="too many connections"):
        await reach(bench.record, bench.secret)
    assert bench.host.listener.refused == before + 1


SLACK = 8
"""Maximum number of descriptors that event loops and threads may open meanwhile."""


def address_of(bench: Bench) -> tuple[str, int]:
    host, _, port = bench.record.address.rpartition(":")
    return host, int(port)


def open_idle(address: tuple[str, int], count: int) -> list[socket.socket]:
    return [socket.create_connection(address, timeout=10) for _ in range(count)]


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def connected(bench: Bench) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = bench.record.address.rpartition(":")
    context: ssl.SSLContext = identity.trusting(bench.record.certificate)
    return await asyncio.open_connection(host, int(port), ssl=context, server_hostname="")
