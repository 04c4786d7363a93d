"""Timeouts and number of connections, tested with raw sockets against a real server."""

import asyncio
import contextlib
import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from stoker.base.config import Settings
from stoker.platform.web.context import Platform
from stoker.registry.files import service
from stoker.server.edge.connections import Connections, RefusalReason
from stoker.server.edge.kernel import raise_open_files
from stoker.server.edge.limits import IDLE_S, PROGRESS_BYTES, EdgeLimits
from stoker.server.services import build_services
from stoker.store.tables.files import Purpose
from tests.server.support import (
    ANSWER_S,
    BODY_S,
    CONNECTIONS,
    END,
    GET,
    GIVEN_S,
    HEAD_S,
    MIB,
    PER_ADDRESS,
    POST,
    check,
    ended,
    others_are_answered,
    until,
)
from tests.support.raw import Answer, answers, ask, connect, read_all, read_one
from tests.support.scraping import scrape
from tests.support.server import Server


@pytest.mark.fault("d1")
class TestM9:
    """A silent or slow client loses its connection, and the server holds no other resource for
    it.
    """

    def test_m9_silent_connection(self, hasty: Server, operator: httpx.Client) -> None:
        check(ask(hasty), 408, "RequestTimeoutError", "request_timeout")
        assert ended(operator, "head_timeout") >= 1

    def test_m9_dripping_head(self, hasty: Server) -> None:
        with connect(hasty) as connection:
            connection.settimeout(0.2)
            connection.sendall(GET + b"x-a: ")
            deadline, received = time.monotonic() + GIVEN_S, b""
            while not received:
                assert time.monotonic() < deadline
                connection.send(b"a")
                with contextlib.suppress(TimeoutError):
                    received = connection.recv(4096)
            connection.settimeout(GIVEN_S)
            received += read_all(connection)
        check(answers(received), 408, "RequestTimeoutError", "request_timeout")

    def test_m9_time_begins_anew_with_the_next_head(self, hasty: Server) -> None:
        with connect(hasty) as connection:
            for _ in range(3):
                connection.sendall(GET + b"\r\n")
                assert read_one(connection).status == 200
                # The pause exceeds the head timeout, which does not run between requests.
                time.sleep(HEAD_S * 1.5)
            connection.sendall(GET)
            check(answers(read_all(connection)), 408, "RequestTimeoutError", "request_timeout")

    def test_m9_slow_body(self, hasty: Server, operator: httpx.Client) -> None:
        head = POST + b"authorization: Bearer " + hasty.operator_key.encode() + b"\r\n"
        before = ended(operator, "body_timeout")
        with connect(hasty) as known, connect(hasty) as chunked:
            known.sendall(head + b"content-length: 90000\r\n\r\n ")
            chunked.sendall(head + b"transfer-encoding: chunked\r\n\r\n5\r\n ")
            for connection in (known, chunked):
                responses = answers(read_all(connection))
                check(responses, 408, "RequestTimeoutError", "request_timeout")
        assert ended(operator, "body_timeout") == before + 2

    def test_m9_slow_upload(self, hasty: Server, operator: httpx.Client) -> None:
        with hasty.account("slow") as client:
            body = {"display_name": "slow"}
            artifact = client.post("/v1/model-artifacts", json=body).raise_for_status().json()
            path = f"/v1/model-artifacts/{artifact['id']}/uploads"
            upload = client.post(path).raise_for_status().json()["upload_id"]
            key = client.headers["authorization"].encode()
            head = f"PUT {path}/{upload}/files/model.safetensors HTTP/1.1\r\n".encode()
            head += b"host: test\r\ncontent-length: 1000000\r\nauthorization: " + key + b"\r\n\r\n"
            responses = ask(hasty, head, b"a" * 5000, b"a", pause_s=0.1)
            check(responses, 408, "RequestTimeoutError", "request_timeout")
            # The handler has ended: deleting its upload session waits for that.
            client.delete(f"{path}/{upload}").raise_for_status()

    def test_m9_body_that_makes_progress(self, hasty: Server) -> None:
        """A body that makes progress is accepted, although it takes longer than the timeout in
        total.
        """
        key = hasty.operator_key.encode()
        piece = b" " * PROGRESS_BYTES
        length = f"content-length: {5 * len(piece) + 2}\r\n".encode()
        head = POST + b"authorization: Bearer " + key + b"\r\n" + length
        responses = ask(hasty, head + END, *[piece] * 5, b"{}", pause_s=BODY_S / 4)
        assert [response.status for response in responses] == [400]
        assert "'account_id' is required" in responses[0].error["message"]

    def test_m9_body_after_its_answer(self, hasty: Server, operator: httpx.Client) -> None:
        """After a 401 response, a body that never ends holds no resources."""
        before = ended(operator, "body_timeout")
        with connect(hasty) as connection:
            connection.sendall(POST + b"content-length: 90000\r\n\r\n ")
            assert [response.status for response in answers(read_all(connection))] == [401]
        assert ended(operator, "body_timeout") == before + 1

    def test_m9_silent_ones_in_number(self, hasty: Server, operator: httpx.Client) -> None:
        with contextlib.ExitStack() as stack:
            silent = [stack.enter_context(connect(hasty)) for _ in range(PER_ADDRESS // 2)]
            others_are_answered(hasty)
            for connection in silent:
                check(answers(read_all(connection)), 408, "RequestTimeoutError", "request_timeout")
        until(operator, "stoker_connections_open", 1)


@pytest.mark.fault("d2")
class TestReaderThatNeverReads:
    @pytest.fixture
    async def download(self, hasty: Server) -> Any:
        """Returns a request for a file that is larger than the kernel's buffers."""
        platform = build_services(hasty.settings).get(Platform)
        await platform.secret.agree(platform.database)
        with hasty.account("unread") as client:
            (file,) = await service.store(
                platform,
                account_id=client.account_id,  # type: ignore[attr-defined]
                deployment_id="dep_1",
                purpose=Purpose.VIDEO,
                contents=[bytes(64 * MIB)],
                content_type="video/mp4",
            )
            key = client.headers["authorization"]
            yield f"GET /v1/files/{file.id}/content HTTP/1.1\r\nauthorization: {key}\r\n".encode()
        await platform.media.close()
        await platform.database.close()

    ROUTE = "/v1/files/{file_id}/content"

    def served(self, operator: httpx.Client) -> float:
        return scrape(operator).get("stoker_http_requests_total", route=self.ROUTE)

    @pytest.mark.parametrize("ahead", [0, 1])
    def test_m9_its_connection_and_its_work_end(
        self, hasty: Server, operator: httpx.Client, download: bytes, ahead: int
    ) -> None:
        """The connection and its handler also end if another request is queued behind the current
        one.
        """
        before, served = ended(operator, "answer_timeout"), self.served(operator)
        request = download + b"host: test\r\n\r\n"
        with connect(hasty, receive_bytes=4096) as connection:
            connection.sendall(request * (1 + ahead))
            until(operator, "stoker_connections_ended_total", before + 1, reason="answer_timeout")
            # The handler has ended. The request that was queued behind it was not started.
            until(operator, "stoker_http_requests_total", served + 1, route=self.ROUTE)
            received = read_all(connection)
        assert received.startswith(b"HTTP/1.1 200") and len(received) < 64 * MIB
        until(operator, "stoker_connections_open", 1)

    def test_m9_one_that_closes_behind_the_answer(
        self, hasty: Server, operator: httpx.Client, download: bytes
    ) -> None:
        """The transport holds the whole answer and would otherwise wait indefinitely for the client
        to read it.
        """
        before = ended(operator, "answer_timeout")
        ranged = download + b"range: bytes=0-60000\r\nhost: test\r\n" + END
        with connect(hasty, receive_bytes=4096) as connection:
            connection.sendall(download + b"range: bytes=0-8000000\r\nhost: test\r\n" + END)
            until(operator, "stoker_connections_ended_total", before + 1, reason="answer_timeout")
        (response,) = ask(hasty, ranged)
        assert (response.status, len(response.body)) == (206, 60001)

    def test_m9_slow_reader_gets_it_all(self, hasty: Server, download: bytes) -> None:
        """A slow reader that makes progress receives the whole answer, although it exceeds the
        timeout in total.
        """
        with connect(hasty, receive_bytes=64 * 1024) as connection:
            connection.sendall(download + b"range: bytes=0-12000000\r\nhost: test\r\n" + END)
            received, began = bytearray(), time.monotonic()
            while piece := connection.recv(1 << 18):
                received += piece
                if time.monotonic() - began < 3 * ANSWER_S:
                    time.sleep(ANSWER_S / 8)
        (whole,) = answers(bytes(received))
        assert (whole.status, len(whole.body)) == (206, 12_000_001)


class TestPlaces:
    @contextlib.contextmanager
    def held(self, server: Server, *sources: str) -> Iterator[None]:
        """Opens connections with one pending request each. The server waits some seconds for each
        body.

        All requests are sent before the first reply is awaited. Otherwise the first could end
        before the last is ready on a slow machine.
        """
        key = server.operator_key.encode()
        head = POST + b"authorization: Bearer " + key + b"\r\nexpect: 100-continue\r\n"
        with contextlib.ExitStack() as stack:
            connections: list[socket.socket] = []
            for source in sources:
                connections.append(stack.enter_context(connect(server, source)))
                connections[-1].sendall(head + b"content-length: 90000\r\n\r\n")
            for connection in connections:
                assert connection.recv(100).startswith(b"HTTP/1.1 100")
            yield

    def refused(self, server: Server, source: str = "") -> Answer:
        with connect(server, source) as connection:
            connection.sendall(GET + b"\r\n")
            responses = answers(read_all(connection))
        answer = check(responses, 503, "CapacityError", "too_many_connections")
        assert int(answer.headers["retry-after"]) >= 1
        return answer

    def test_m9_of_one_address(self, hasty: Server, operator: httpx.Client) -> None:
        operator.get("/health")
        with self.held(hasty, *["127.0.0.2"] * PER_ADDRESS):
            before = scrape(operator).get("stoker_connections_refused_total", reason="address")
            assert "from this address" in self.refused(hasty, "127.0.0.2").error["message"]
            others_are_answered(hasty)
            refused_count = scrape(operator).get(
                "stoker_connections_refused_total", reason="address"
            )
            assert refused_count == before + 1
        until(operator, "stoker_connections_open", 1)

    def test_m9_in_all(self, hasty: Server, operator: httpx.Client) -> None:
        operator.get("/health")
        with self.held(hasty, *(f"127.0.0.{2 + at % 2}" for at in range(CONNECTIONS))):
            assert "to this server" in self.refused(hasty, "127.0.0.4").error["message"]
        until(operator, "stoker_connections_open", 1)
        assert scrape(operator).get("stoker_connections_refused_total", reason="server") >= 1

    def test_m9_idle_ones_give_way_the_oldest_first(
        self, hasty: Server, operator: httpx.Client
    ) -> None:
        operator.get("/health")
        before = ended(operator, "gave_way")
        with contextlib.ExitStack() as stack:
            idle = [stack.enter_context(connect(hasty, "127.0.0.2")) for _ in range(2)]
            for connection in idle:
                connection.sendall(GET + b"\r\n")
                assert read_one(connection).status == 200
            stack.enter_context(self.held(hasty, *["127.0.0.2"] * (PER_ADDRESS - 2)))
            late = stack.enter_context(connect(hasty, "127.0.0.2"))
            late.sendall(GET + b"\r\n")
            assert read_one(late).status == 200
            assert idle[0].recv(1) == b""
            idle[1].sendall(GET + b"\r\n")
            assert read_one(idle[1]).status == 200
            assert ended(operator, "gave_way") == before + 1
        until(operator, "stoker_connections_open", 1)

    def test_m9_a_thousand_from_one_address(self, gateway: Server) -> None:
        """With default limits, no stream behind a reverse proxy is closed in favour of another."""
        raise_open_files()
        with contextlib.ExitStack() as stack:
            made = [stack.enter_context(connect(gateway)) for _ in range(1000)]
            for _ in range(2):
                for connection in made:
                    connection.sendall(GET + b"\r\n")
                assert {read_one(connection).status for connection in made} == {200}
            others_are_answered(gateway)
            # The requests arrive together and are short. A thousand steps in one turn of the loop
            # do not count as one long step.
            gateway.held_loop()


class TestConnections:
    """Tests the accounting of connections, without real connections."""

    class One:
        def __init__(self) -> None:
            self.gave_way = False
            self.checked: list[float] = []

        def check(self, now: float) -> None:
            self.checked.append(now)

        def give_way(self) -> None:
            self.gave_way = True

    def limits(self, **given: int) -> EdgeLimits:
        places = {"connections": 4, "per_address": 2, **given}
        return EdgeLimits(**places, head_s=1, body_s=1, answer_s=1)

    async def test_places_come_back(self) -> None:
        connections = Connections(self.limits())
        for _ in range(50):
            connection = self.One()
            assert connections.admit(connection, "192.0.2.1") is None
            connections.work(connection)
            connections.forget(connection)
            connections.forget(connection)
        counted = {family.name: family.samples for family in await connections.collect()}
        assert [sample.value for sample in counted["stoker_connections_open"]] == [0]

    async def test_an_ipv6_network_is_one_address(self) -> None:
        connections = Connections(self.limits())
        hosts = ["2001:db8::1", "2001:db8::2:1", "2001:db8::3", "2001:db8:0:1::1"]
        refused = []
        for host in hosts:
            connection = self.One()
            refused.append(connections.admit(connection, host))
            connections.work(connection)
        assert refused == [None, None, RefusalReason.ADDRESS, None]
        assert connections.admit(self.One(), "::ffff:192.0.2.1") is None
        # the previous connection was closed to make room
        assert connections.admit(self.One(), "192.0.2.2") is None

    async def test_a_server_held_up_reads_before_it_judges(self) -> None:
        connections, connection = Connections(self.limits()), self.One()
        connections.admit(connection, "192.0.2.1")
        began = asyncio.get_running_loop().time()
        for after in (1.0, 1.5, 90.0, 90.1, 90.2):
            connections.sweep(began + after)
        assert connection.checked == [began + 1.0, began + 1.5, began + 90.1]

    async def test_any_number_from_one_address(self) -> None:
        connections = Connections(self.limits(per_address=0))
        ones = [self.One() for _ in range(5)]
        for connection in ones[:4]:
            assert connections.admit(connection, "192.0.2.1") is None
            connections.work(connection)
        assert connections.admit(ones[4], "192.0.2.1") is RefusalReason.SERVER

    def test_files_bound_the_default(self) -> None:
        settings = Settings(_env_file=None)  # type: ignore[call-arg]
        assert EdgeLimits.of(settings, 1_000).connections == 800
        assert EdgeLimits.of(settings, 65_536).connections == 10_000
        assert EdgeLimits.of(settings, 65_536).per_address >= 1_000
        assert IDLE_S == 75
