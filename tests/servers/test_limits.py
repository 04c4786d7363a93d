"""Limits of a key across several servers, first with a clock that the test controls, then over
HTTP.
"""

import time
from collections.abc import AsyncIterator, Sequence

import pytest

from stoker.platform.web.principal import Principal
from stoker.store.db import Database
from stoker.tenancy.keys.limits import RateLimits
from stoker.tenancy.keys.shared_limits import SharedLimits
from tests.keys.test_limits import caller, served
from tests.servers.support import SLACK_S, SOON_S, Pair, until

KEYS = "/v1/api-keys"
MINUTE = 60


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


class Cluster:
    """Servers that share limits and one clock."""

    def __init__(self, databases: Sequence[Database]) -> None:
        self.clock = Clock()
        self.count = len(databases)
        self.servers = [
            SharedLimits(database, lambda: self.count, self.clock, self.clock)
            for database in databases
        ]

    async def ask(self, server: int, key: Principal, times: int = 1) -> int:
        """Sends `times` requests and returns the number that are admitted."""
        limits, passed = self.servers[server], 0
        for _ in range(times):
            await limits.ready(key)
            passed += limits.check(key).exhausted is None
        return passed

    async def seconds(
        self, count: int, key: Principal, *asking: int, each: int = 2, step: float = 1.0
    ) -> list[int]:
        """Returns the number of admitted requests per server within `count` seconds. Each server in
        `asking` receives `each` requests per step from callers that do not wait.
        """
        passed = [0 for _ in self.servers]
        for at in range(int(count / step)):
            for server in asking[:: -1 if at % 2 else 1]:
                passed[server] += await self.ask(server, key, each)
            self.clock.now += step
            if (at + 1) * step % 1 == 0:
                for limits in self.servers:
                    await limits.balance()
        return passed


@pytest.fixture
async def sharing(postgres_url: str) -> AsyncIterator[Cluster]:
    databases = [Database(postgres_url, server_id=f"srv_{at}") for at in range(3)]
    await databases[0].migrate()
    yield Cluster(databases)
    for database in databases:
        await database.close()


class TestRequests:
    async def test_together_they_let_through_what_one_would(self, sharing: Cluster) -> None:
        """Three servers admit as much as one: a minute's limit at once, then at an even rate."""
        key, limit = caller("key_even", requests=60), 60
        assert sum([await sharing.ask(server, key, limit) for server in range(3)]) == limit
        after = await sharing.seconds(MINUTE, key, 0, 1, 2)
        assert sum(after) == pytest.approx(limit, rel=0.1)

    async def test_never_more_than_there_is(self, sharing: Cluster) -> None:
        """The limit holds when all servers receive a whole minute's requests at the same moment."""
        key = caller("key_burst", requests=100)
        passed = [await sharing.ask(server, key, 100) for server in range(3)]
        assert sum(passed) == 100

    async def test_a_server_without_traffic_yields_its_share(self, sharing: Cluster) -> None:
        key, limit = caller("key_yield", requests=60), 60
        assert sum([await sharing.ask(server, key, limit) for server in range(3)]) == limit
        await sharing.seconds(5, key, 0, 1)
        rest = await sharing.seconds(MINUTE, key, 1)
        assert rest[1] == pytest.approx(limit, rel=0.1)
        assert rest[0] == 0
        # The server receives a share again when it gets requests.
        both = await sharing.seconds(20, key, 0, 1)
        assert sum(both) == pytest.approx(limit / 3, abs=2)
        assert min(both[:2]) > 0

    async def test_one_alone_is_as_it_was(self, sharing: Cluster) -> None:
        """A single server decides exactly like a server that counts in memory."""
        sharing.count = 1
        key = caller("key_alone", requests=6)
        alone = RateLimits(sharing.clock)
        for pause in (0, 9.9, 0.1, 3600, 5, 5, 7.5, 0.2, 30):
            sharing.clock.now += pause
            expected = [alone.check(key).exhausted for _ in range(7)]
            verdicts: list[str | None] = []
            for _ in range(7):
                await sharing.servers[0].ready(key)
                verdicts.append(sharing.servers[0].check(key).exhausted)
            assert verdicts == expected

    async def test_what_is_told_is_true(self, sharing: Cluster) -> None:
        key, limits = caller("key_told", requests=60), sharing.servers[0]
        await limits.ready(key)
        headers = limits.check(key).headers
        assert headers["x-ratelimit-limit-requests"] == "60"
        # The remainder includes the shares of the other servers.
        assert headers["x-ratelimit-remaining-requests"] == "59"
        assert headers["x-ratelimit-reset-requests"] == "1s"
        assert await sharing.ask(0, key, 60) == 59
        await limits.ready(key)
        verdict = limits.check(key)
        assert verdict.exhausted == "requests"
        sharing.clock.now += verdict.retry_after_s
        assert await sharing.ask(0, key) == 1

    async def test_a_server_that_dies_takes_its_share_for_a_minute_at_most(
        self, sharing: Cluster
    ) -> None:
        key = caller("key_dies", requests=60)
        assert await sharing.ask(0, key) == 1
        dead = sharing.servers.pop(0)
        sharing.clock.now += MINUTE
        assert await sharing.ask(1, key, 100) == 60
        assert dead is not None

    async def test_a_key_without_limits(self, sharing: Cluster) -> None:
        assert await sharing.ask(0, caller("key_free"), 100) == 100
        await sharing.servers[0].balance()


class TestTokens:
    async def test_a_debt_is_everybodys(self, sharing: Cluster) -> None:
        key = caller("key_debt", tokens=600)
        a, b = sharing.servers[:2]
        for limits in (a, b):
            await limits.ready(key)
            assert limits.check(key).exhausted is None
        # Usage of the request that `b` checked last.
        b.served(served(input_tokens=900, output_tokens=900))
        await b.balance()
        await a.balance()
        await a.ready(key)
        verdict = a.check(key)
        assert verdict.exhausted == "tokens"
        # 600 tokens were available and 1,800 were used. They refill at 10 per second.
        assert verdict.retry_after_s == pytest.approx(120, abs=1)
        sharing.clock.now += 119
        assert await sharing.ask(0, key) == 0
        sharing.clock.now += 1.2
        assert await sharing.ask(0, key) == 1

    async def test_of_a_call_that_outlasts_its_share(self, sharing: Cluster) -> None:
        """The key has no traffic while its call runs. The cost of the call still counts."""
        key, (a, b) = caller("key_long", tokens=600), sharing.servers[:2]
        await a.ready(key)
        a.check(key)
        for _ in range(3):
            sharing.clock.now += 1
            await a.balance()
        assert a._keys == {}
        a.served(served(output_tokens=1200))
        await a.balance()
        await b.ready(key)
        assert b.check(key).exhausted == "tokens"


def hammered(pair: Pair, secret: str, times: int) -> list[int]:
    with pair.a.client(secret) as on_a, pair.b.client(secret) as on_b:
        return [
            client.get("/v1/models").status_code for _ in range(times) for client in (on_a, on_b)
        ]


class TestTwo:
    def test_over_http(self, two: Pair) -> None:
        on_a, _ = two.account()
        body = {"scope": "account", "requests_per_minute": 20}
        made = on_a.post(KEYS, json=body)
        assert made.status_code == 201, made.text
        begun = time.monotonic()
        statuses = hammered(two, made.json()["key"], 25)
        # A request becomes available every three seconds during the test.
        assert 20 <= statuses.count(200) <= 21 + (time.monotonic() - begun) / 3
        assert set(statuses) == {200, 429}

    def test_a_revoked_key_is_refused_by_all(self, two: Pair) -> None:
        on_a, _ = two.account()
        made = on_a.post(KEYS, json={"scope": "account"}).json()
        with two.b.client(made["key"]) as other:
            assert other.get("/v1/models").status_code == 200
            on_a.delete(f"{KEYS}/{made['id']}").raise_for_status()
            _, seconds = until(lambda: other.get("/v1/models").status_code == 401)
            assert seconds < SOON_S + SLACK_S

    def test_a_rotated_secret_is_refused_by_all(self, two: Pair) -> None:
        on_a, _ = two.account()
        made = on_a.post(KEYS, json={"scope": "account"}).json()
        with two.b.client(made["key"]) as other:
            assert other.get("/v1/models").status_code == 200
            path = f"{KEYS}/{made['id']}/rotate"
            on_a.post(path, json={"grace_s": 0}).raise_for_status()
            _, seconds = until(lambda: other.get("/v1/models").status_code == 401)
            assert seconds < SOON_S + SLACK_S
