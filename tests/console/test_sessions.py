"""Signing in to the console: a browser's cookies, its rights, and the end of a session."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any

import httpx
import pytest

from stoker.base.errors import RateLimitError
from stoker.server.console import service
from stoker.server.console.attempts import FREE, LONGEST_S, Attempts
from stoker.server.console.context import ConsoleContext
from stoker.server.console.service import MOST_LINKS, MOST_SESSIONS
from stoker.store import db
from stoker.tenancy.keys.sessions import Sessions, signed_out
from tests.support.app import App, serving
from tests.support.contract import check

SESSION = "/console/session"
LINKS = "/v1/console/links"
KEYS = "/v1/api-keys"
SIGNED_OUT = signed_out().body()


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
async def app(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[App]:
    url = request.getfixturevalue("postgres_url") if request.param == "postgresql" else None
    async with serving(tmp_path_factory.mktemp("console") / "data", database_url=url) as app:
        yield app


async def account_key(app: App, **more: Any) -> tuple[httpx.AsyncClient, dict[str, Any]]:
    """Returns a client of a new account, and another key of that account."""
    client = await app.account()
    made = await client.post(KEYS, json={"scope": "account", **more})
    return client, made.raise_for_status().json()


_addresses = (f"10.0.{index >> 8}.{index & 255}" for index in itertools.count())


def browser(app: App, address: str | None = None, **headers: str) -> httpx.AsyncClient:
    """Returns a client like a page of the console: with cookies, and without a key."""
    address = address or next(_addresses)

    async def checked(response: httpx.Response) -> None:
        await response.aread()
        check(response)

    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app=app.app, client=(address, 1)),
        base_url="http://stoker",
        headers={"sec-fetch-site": "same-origin", **headers},
        event_hooks={"response": [checked]},
    )


async def signed_in(app: App, key: str, **headers: str) -> httpx.AsyncClient:
    """Returns a signed-in browser that sends the token with all requests."""
    page = browser(app, **headers)
    answer = await page.post(SESSION, json={"key": key})
    page.headers["x-csrf-token"] = answer.raise_for_status().json()["csrf"]
    return page


class TestSigningIn:
    @pytest.mark.case(13)
    async def test_nobody_is_signed_in_without_a_key(self, app: App) -> None:
        page = browser(app)
        for body, why in (
            ({"key": "sk-nothing-at-all"}, "You cannot sign in with this key"),
            ({"link": "nothing"}, "You cannot sign in with this link"),
        ):
            answer = await page.post(SESSION, json=body)
            assert answer.status_code == 401
            # The message is for a person, who does not know headers.
            message = answer.json()["error"]["message"]
            assert why in message and "Authorization" not in message
            assert "set-cookie" not in answer.headers
        for answer in (await page.get(SESSION), await page.delete(SESSION)):
            assert (answer.status_code, answer.json()) == (401, SIGNED_OUT)

    async def test_body_is_a_key_or_a_link(self, app: App) -> None:
        page = browser(app)
        for body in ({}, {"key": "sk-a-b", "link": "c"}, {"key": "x" * 257}, {"kee": "sk-a-b"}):
            assert (await page.post(SESSION, json=body)).status_code == 400, body
        answer = await page.post(SESSION, data={"key": "sk-a-b"})
        assert answer.status_code == 415

    async def test_tells_what_the_key_may(self, app: App) -> None:
        client, key = await account_key(app)
        page = browser(app)
        answer = await page.post(SESSION, json={"key": key["key"]})
        session = answer.json()
        assert (session["scope"], session["account_id"]) == ("account", client.account_id)  # type: ignore[attr-defined]
        assert session["deployments"] is None
        until = datetime.fromisoformat(session["expires_at"]) - datetime.now(UTC)
        assert timedelta(hours=11.9) < until < timedelta(hours=12.1)
        assert (await page.get(SESSION)).json() == session
        assert answer.headers["cache-control"] == "no-store"

    @pytest.mark.case(25)
    async def test_cookie_is_out_of_reach(self, app: App) -> None:
        _, key = await account_key(app)
        answer = await browser(app).post(SESSION, json={"key": key["key"]})
        (cookie,) = SimpleCookie(answer.headers["set-cookie"]).values()
        assert cookie["httponly"] and cookie["samesite"].lower() == "strict"
        assert cookie["path"] == "/" and not cookie["secure"] and not cookie["domain"]
        assert int(cookie["max-age"]) == 12 * 3600
        # The database has neither the cookie nor the key.
        async with app.platform.database.reading() as session:
            connection = await session.connection()
            rows = (await connection.exec_driver_sql("SELECT * FROM console_sessions")).all()
        assert cookie.value not in repr(rows) and key["key"].split("-", 2)[2] not in repr(rows)

    async def test_cookie_behind_a_proxy_with_tls_and_a_path(self, tmp_path: Path) -> None:
        public = "https://models.example/stoker"
        async with serving(tmp_path / "data", public_url=public) as app:
            page = browser(app)
            answer = await page.post(SESSION, json={"key": app.operator_key})
            (cookie,) = SimpleCookie(answer.headers["set-cookie"]).values()
            assert cookie["secure"] and cookie["path"] == "/stoker/"
            made = await app.client(app.operator_key).post(LINKS)
            assert made.json()["url"].startswith(f"{public}/console/#link=")


class TestWhatItMay:
    async def test_is_what_the_key_may(self, app: App) -> None:
        client, key = await account_key(app)
        page = await signed_in(app, key["key"])
        made = await page.post("/v1/model-artifacts", json={"display_name": "by the page"})
        assert made.status_code == 201
        listed = (await client.get("/v1/model-artifacts")).json()["data"]
        assert [row["id"] for row in listed] == [made.json()["id"]]
        # The session has no rights on operators' resources or other accounts.
        assert (await page.get("/v1/accounts")).status_code == 401
        other = await app.account("other")
        theirs = (await other.post("/v1/model-artifacts", json={"display_name": "x"})).json()["id"]
        assert (await page.get(f"/v1/model-artifacts/{theirs}")).status_code == 404

    async def test_an_operator_names_an_account(self, app: App) -> None:
        client = await app.account()
        account_id = client.account_id  # type: ignore[attr-defined]
        page = await signed_in(app, app.operator_key)
        assert (await page.get("/v1/deployments")).status_code == 400
        deployments = await page.get("/v1/deployments", headers={"x-stoker-account": account_id})
        assert deployments.json()["data"] == []

    @pytest.mark.case(25)
    @pytest.mark.parametrize("token", [None, "", "0" * 64, "é"])
    async def test_changes_need_the_token(self, app: App, token: str | None) -> None:
        _, key = await account_key(app)
        page = await signed_in(app, key["key"])
        del page.headers["x-csrf-token"]
        csrf_headers = {} if token is None else {"x-csrf-token": token.encode()}
        changes = [
            page.post("/v1/model-artifacts", json={"display_name": "x"}, headers=csrf_headers),
            page.post(
                "/v1/chat/completions", json={"model": "x", "messages": []}, headers=csrf_headers
            ),
            page.delete(f"{KEYS}/{key['id']}", headers=csrf_headers),
            page.post(LINKS, headers=csrf_headers),
            page.delete(SESSION, headers=csrf_headers),
        ]
        for change in changes:
            answer = await change
            assert answer.status_code == 403, answer.text
            assert answer.json()["error"]["code"] == "csrf_token_missing"
        assert (await page.get("/v1/model-artifacts")).json()["data"] == []

    async def test_token_of_another_session_is_none(self, app: App) -> None:
        _, key = await account_key(app)
        page, other = await signed_in(app, key["key"]), await signed_in(app, key["key"])
        assert page.headers["x-csrf-token"] != other.headers["x-csrf-token"]
        page.headers["x-csrf-token"] = other.headers["x-csrf-token"]
        assert (await page.delete(SESSION)).status_code == 403

    @pytest.mark.case(25)
    @pytest.mark.parametrize(
        "headers",
        [
            {"sec-fetch-site": "cross-site"},
            # Another port or name of our site still counts as another page.
            {"sec-fetch-site": "same-site"},
            {"sec-fetch-site": "", "origin": "http://stoker"},
            {"origin": "https://evil.example"},
            {"origin": "null"},
            {"origin": "http://stoker.evil.example"},
            {"origin": "http://stoker:8080"},
        ],
        ids=str,
    )
    async def test_another_site_gets_nothing(self, app: App, headers: dict[str, str]) -> None:
        _, key = await account_key(app)
        page = await signed_in(app, key["key"])
        if "sec-fetch-site" not in headers:
            del page.headers["sec-fetch-site"]
        for request in (
            page.get("/v1/deployments", headers=headers),
            page.post("/v1/model-artifacts", json={"display_name": "x"}, headers=headers),
            page.post(SESSION, json={"key": key["key"]}, headers=headers),
            page.get(SESSION, headers=headers),
        ):
            answer = await request
            assert answer.status_code == 403, (headers, answer.text)
            assert answer.json()["error"]["code"] == "other_site"
        assert "x-csrf-token" not in answer.headers

    async def test_our_own_origin_is_ours(self, app: App) -> None:
        _, key = await account_key(app)
        page = await signed_in(app, key["key"])
        del page.headers["sec-fetch-site"]
        for headers in ({}, {"origin": "http://stoker"}):
            assert (await page.get("/v1/deployments", headers=headers)).status_code == 200

    async def test_a_key_in_the_header_comes_first(self, app: App) -> None:
        _, key = await account_key(app)
        page = await signed_in(app, key["key"])
        bad_headers = {"authorization": "Bearer nonsense"}
        assert (await page.get("/v1/deployments", headers=bad_headers)).status_code == 401
        # A key in the header also needs no token.
        other = await app.account("other")
        page.headers.pop("x-csrf-token")
        other_headers = {
            "authorization": other.headers["authorization"],
            "sec-fetch-site": "cross-site",
        }
        made = await page.post(
            "/v1/model-artifacts", json={"display_name": "x"}, headers=other_headers
        )
        assert made.status_code == 201

    @pytest.mark.parametrize("cookie", ["", "x", "x" * 65, "sk-a-b", "%00", '"'])
    async def test_cookies_that_are_none(self, app: App, cookie: str) -> None:
        page = browser(app, cookie=f"stoker_session={cookie}")
        assert (await page.get("/v1/deployments")).status_code == 401


class TestItsEnd:
    async def test_signing_out_is_at_once(self, app: App) -> None:
        _, key = await account_key(app)
        page = await signed_in(app, key["key"])
        stolen = dict(page.cookies)
        answer = await page.delete(SESSION)
        assert answer.status_code == 204
        (cookie,) = SimpleCookie(answer.headers["set-cookie"]).values()
        assert cookie["max-age"] == "0" and cookie.value == ""
        again = browser(app)
        again.cookies.update(stolen)
        assert (await again.get(SESSION)).status_code == 401
        assert (await again.get("/v1/deployments")).status_code == 401

    @pytest.mark.case(25)
    async def test_revoking_its_key_ends_it(self, app: App) -> None:
        client, key = await account_key(app)
        page = await signed_in(app, key["key"])
        other = await signed_in(app, client.headers["authorization"].partition(" ")[2])
        (await client.delete(f"{KEYS}/{key['id']}")).raise_for_status()
        assert (await page.get("/v1/deployments")).status_code == 401
        assert (await page.get(SESSION)).status_code == 401
        assert (await other.get("/v1/deployments")).status_code == 200

    async def test_a_page_can_revoke_its_own_key(self, app: App) -> None:
        _, key = await account_key(app)
        page, tab = await signed_in(app, key["key"]), await signed_in(app, key["key"])
        assert (await page.delete(f"{KEYS}/{key['id']}")).status_code == 200
        assert (await tab.get(SESSION)).status_code == 401

    async def test_ends_with_the_secret_that_began_it(
        self, app: App, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        client, key = await account_key(app)
        before = await signed_in(app, key["key"])
        rotated = await client.post(f"{KEYS}/{key['id']}/rotate", json={"grace_s": 60})
        after = await signed_in(app, rotated.raise_for_status().json()["key"])
        assert (await before.get("/v1/deployments")).status_code == 200
        later = db.now() + timedelta(seconds=61)
        monkeypatch.setattr(db, "now", lambda: later)
        assert (await before.get("/v1/deployments")).status_code == 401
        assert (await after.get("/v1/deployments")).status_code == 200

    async def test_ends_when_its_key_expires(
        self, app: App, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        soon = datetime.now(UTC) + timedelta(seconds=60)
        _, key = await account_key(app, expires_at=soon.isoformat())
        page = await signed_in(app, key["key"])
        assert (await page.get(SESSION)).status_code == 200
        monkeypatch.setattr(db, "now", lambda: soon)
        assert (await page.get(SESSION)).status_code == 401

    async def test_ends_by_itself(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "data", console_session_h=0.5 / 3600) as app:
            page = await signed_in(app, app.operator_key)
            await asyncio.sleep(0.6)
            assert (await page.get(SESSION)).status_code == 401
            await service.forget_expired(app.parts.get(ConsoleContext), db.now())
            async with app.platform.database.reading() as session:
                connection = await session.connection()
                rows = await connection.exec_driver_sql("SELECT count(*) FROM console_sessions")
                assert rows.scalar_one() == 0

    async def test_survives_a_restart(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "data") as app:
            page = await signed_in(app, app.operator_key)
        async with serving(tmp_path / "data") as app:
            again = browser(app)
            again.cookies.update(page.cookies)
            assert (await again.get(SESSION)).json()["csrf"] == page.headers["x-csrf-token"]

    async def test_the_oldest_makes_room(self, app: App) -> None:
        _, key = await account_key(app)
        first = await signed_in(app, key["key"])
        second = await signed_in(app, key["key"])
        for _ in range(MOST_SESSIONS - 1):
            last = await signed_in(app, key["key"])
        app.parts.get(Sessions)._entries.clear()
        assert (await first.get(SESSION)).status_code == 401
        assert (await second.get(SESSION)).status_code == 200
        assert (await last.get(SESSION)).status_code == 200


class TestLinks:
    async def link(self, client: httpx.AsyncClient) -> str:
        before = datetime.now(UTC)
        made = (await client.post(LINKS)).raise_for_status().json()
        assert made["object"] == "console.link"
        begun = datetime.fromisoformat(made["expires_at"]) - timedelta(seconds=60)
        assert before - timedelta(seconds=1) < begun <= datetime.now(UTC)
        address, _, token = made["url"].partition("#link=")
        assert address == "http://stoker/console/"
        return token

    async def test_signs_in_once(self, app: App) -> None:
        client, _ = await account_key(app)
        token = await self.link(client)
        first = await browser(app).post(SESSION, json={"link": token})
        assert first.json()["account_id"] == client.account_id  # type: ignore[attr-defined]
        again = await browser(app).post(SESSION, json={"link": token})
        assert again.status_code == 401 and "was used before" in again.text

    async def test_two_who_open_it_together(self, app: App) -> None:
        client, _ = await account_key(app)
        token = await self.link(client)
        opened = [browser(app).post(SESSION, json={"link": token}) for _ in range(4)]
        answers = await asyncio.gather(*opened)
        assert sorted(answer.status_code for answer in answers) == [200, 401, 401, 401]

    async def test_ends_after_a_minute(self, app: App, monkeypatch: pytest.MonkeyPatch) -> None:
        client, _ = await account_key(app)
        token = await self.link(client)
        later = db.now() + timedelta(seconds=61)
        monkeypatch.setattr(db, "now", lambda: later)
        assert (await browser(app).post(SESSION, json={"link": token})).status_code == 401

    async def test_ends_with_its_key(self, app: App) -> None:
        client, key = await account_key(app)
        token = await self.link(app.client(key["key"]))
        (await client.delete(f"{KEYS}/{key['id']}")).raise_for_status()
        assert (await browser(app).post(SESSION, json={"link": token})).status_code == 401

    async def test_of_a_page_is_of_its_key(self, app: App) -> None:
        client, key = await account_key(app)
        page = await signed_in(app, key["key"])
        token = await self.link(page)
        opened = await browser(app).post(SESSION, json={"link": token})
        assert opened.json()["account_id"] == client.account_id  # type: ignore[attr-defined]
        assert (await page.delete(f"{KEYS}/{key['id']}")).status_code == 200
        assert (await browser(app).get(SESSION)).status_code == 401

    async def test_the_oldest_makes_room(self, app: App) -> None:
        client, _ = await account_key(app)
        tokens = [await self.link(client) for _ in range(MOST_LINKS + 1)]
        assert (await browser(app).post(SESSION, json={"link": tokens[0]})).status_code == 401
        assert (await browser(app).post(SESSION, json={"link": tokens[1]})).status_code == 200


class TestAttempts:
    async def test_failing_ones_are_slowed(self, app: App, monkeypatch: pytest.MonkeyPatch) -> None:
        now = 1000.0
        monkeypatch.setattr(app.parts.get(ConsoleContext).attempts, "_clock", lambda: now)
        _, key = await account_key(app)
        for _ in range(FREE):
            answer = await browser(app, "192.0.2.1").post(SESSION, json={"key": "sk-a-b"})
            assert answer.status_code == 401
        slowed = await browser(app, "192.0.2.1").post(SESSION, json={"key": "sk-a-b"})
        assert slowed.status_code == 429
        assert slowed.headers["retry-after"] == "1"
        # No other address waits.
        elsewhere = await browser(app, "192.0.2.2").post(SESSION, json={"key": "sk-a-b"})
        assert elsewhere.status_code == 401
        # A valid key is not delayed either. It may come through the same proxy, from the same
        # address.
        for number in (1, 2):
            good = await browser(app, f"192.0.2.{number}").post(SESSION, json={"key": key["key"]})
            assert good.status_code == 200
        called = await app.client(key["key"]).get("/v1/deployments")
        assert called.status_code == 200

    def test_waits_double_and_end(self) -> None:
        now = 1000.0
        attempts = Attempts(lambda: now)
        waits: list[float] = []
        for _ in range(FREE + 9):
            attempts.failed("192.0.2.1")
            try:
                attempts.check("192.0.2.1")
                waits.append(0.0)
            except RateLimitError as error:
                waits.append(error.retry_after_s or 0.0)
        assert (
            waits
            == [0.0] * (FREE - 1) + [1, 2, 4, 8, 16, 32, LONGEST_S, LONGEST_S] + [LONGEST_S] * 2
        )
        now += LONGEST_S
        attempts.check("192.0.2.1")
        now += 15 * 60
        attempts.failed("192.0.2.1")
        attempts.check("192.0.2.1")

    def test_one_network_of_ipv6_is_one_party(self) -> None:
        attempts = Attempts(lambda: 0.0)
        for host in range(FREE):
            attempts.failed(f"2001:db8::{host:x}")
        with pytest.raises(RateLimitError):
            attempts.check("2001:db8::ffff")
        attempts.check("2001:db8:0:1::1")

    def test_addresses_are_bounded(self) -> None:
        attempts = Attempts(lambda: 0.0)
        for number in range(10_050):
            attempts.failed(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
        assert len(attempts._failures) == 10_000
