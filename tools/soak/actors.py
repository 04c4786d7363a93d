"""Who uses the server in a soak: each does what its seed says, over HTTP, and keeps count.

An actor trusts an answer: what was acknowledged has to be there later, what was deleted gone. Where
the connection broke it does not know, and finds out.
"""

import asyncio
import contextlib
import hashlib
import random
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

import stoker.demo
from tools.soak.tally import Tally

DEMO = Path(stoker.demo.__file__).parent
MODELS, MEDIA = DEMO / "models", DEMO / "media"
PASSING = frozenset({0, 408, 425, 429, 502, 503, 504})
"""Statuses of answers that may be tried again; 0: there was none."""
CUT_SHARE = 0.2
"""Of uploads of a file, and of streams."""
PATIENCE_S = 240
"""How long one call is tried again, a server's restart and a full disk within."""


class GaveUpError(Exception):
    """A call never got a definite answer."""


@dataclass
class World:
    """What actors share."""

    base_url: str
    data_dir: Path
    key_id: str
    key: str
    account_id: str
    tally: Tally
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def operator_key(self) -> str:
        return (self.data_dir / "operator-key").read_text().strip()

    def client(self, key: str | None = None) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=self.base_url,
            headers={"authorization": f"Bearer {key or self.key}"},
            timeout=httpx.Timeout(180, connect=10),
            verify=False,
        )


class Actor:
    """Acts until the world stops."""

    name = ""
    pause_s = 0.5

    def __init__(self, world: World, seed: str) -> None:
        self.world = world
        self.tally = world.tally
        self.random = random.Random(f"{seed} {self.name}")
        self.client = world.client()

    async def run(self) -> None:
        async with self.client:
            while not self.world.stopping.is_set():
                try:
                    await self.act()
                except GaveUpError as error:
                    self.tally.lose(f"{self.name}: no answer within {PATIENCE_S} s: {error}")
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self.random.uniform(0, 2 * self.pause_s)):
                        await self.world.stopping.wait()

    async def act(self) -> None:
        raise NotImplementedError

    async def settle(self) -> None:
        """After all faults: find out whether everything acknowledged is there."""

    async def once(self, method: str, path: str, **options: Any) -> httpx.Response | None:
        """One try; None where the connection broke."""
        began = time.monotonic()
        try:
            response = await self.client.request(method, path, **options)
        except httpx.TransportError:
            self.tally.answers[self.name, 0] += 1
            return None
        self.tally.answers[self.name, response.status_code] += 1
        if response.status_code == 200:
            self.tally.waited_s.setdefault(self.name, []).append(time.monotonic() - began)
        if response.status_code >= 500 and response.status_code not in PASSING:
            self.tally.lose(f"{self.name}: {method} {path}: {response.text}")
        return response

    async def call(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Tried until there is a definite answer. Raises `GaveUpError`."""
        deadline = time.monotonic() + PATIENCE_S
        last = ""
        while time.monotonic() < deadline:
            response = await self.once(method, path, **options)
            if response is not None and response.status_code not in PASSING:
                return response
            last = response.text if response is not None else "the connection broke"
            await asyncio.sleep(self.random.uniform(0.2, 1.0))
        raise GaveUpError(f"{method} {path}: {last}")


@dataclass
class NodeLease:
    """An artifact that was acknowledged, with what was sent."""

    id: str
    digests: list[str]
    """SHA-256 of its files."""


class Uploader(Actor):
    """Pushes models, with connections cut at any byte; some are deleted again."""

    name = "uploads"
    pause_s = 1.5
    MODELS = ("tiny-ner", "tiny-sentiment", "tiny-encoder", "tiny-digits", "tiny-qa")

    def __init__(self, world: World, seed: str) -> None:
        super().__init__(world, seed)
        self.held: list[NodeLease] = []
        self.gone: list[str] = []

    async def act(self) -> None:
        folder = MODELS / self.random.choice(self.MODELS)
        if artifact := await self.push(folder):
            self.held.append(artifact)
            self.tally.done["models uploaded"] += 1
        while len(self.held) > 6:
            victim = self.held.pop(self.random.randrange(len(self.held)))
            response = await self.call("DELETE", f"/v1/model-artifacts/{victim.id}")
            if response.status_code in (200, 404):
                self.gone.append(victim.id)
                self.tally.done["models deleted"] += 1
            else:
                self.held.append(victim)

    async def push(self, folder: Path, cut_share: float = CUT_SHARE) -> NodeLease | None:
        """Upload a folder's files; None where an answer was lost that nothing can make up for."""
        body = {"display_name": folder.name}
        made = await self.call("POST", "/v1/model-artifacts", json=body)
        if made.status_code != 201:
            self.tally.lose(f"no artifact could be made: {made.text}")
            return None
        identifier = made.json()["id"]
        path = f"/v1/model-artifacts/{identifier}"
        opened = await self.call("POST", f"{path}/uploads")
        if opened.status_code != 201:
            # The first try went through, and its answer was lost: the artifact is busy with it.
            await self.call("DELETE", path)
            return None
        session = f"{path}/uploads/{opened.json()['upload_id']}"
        digests: list[str] = []
        for file in sorted(one for one in folder.rglob("*") if one.is_file()):
            content, name = file.read_bytes(), file.relative_to(folder).as_posix()
            if not await self._send(f"{session}/files/{name}", content, cut_share):
                return None
            digests.append(hashlib.sha256(content).hexdigest())
        done = await self.call("POST", f"{session}/complete")
        if done.status_code not in (200, 409):
            self.tally.lose(f"a session could not be completed: {done.text}")
            return None
        found = await self.call("GET", path)
        if found.json().get("status") != "ready":
            self.tally.lose(f"a completed artifact is {found.text}")
            return None
        return NodeLease(identifier, digests)

    async def _send(self, path: str, content: bytes, cut_share: float) -> bool:
        """All of a file, going on where it was cut off."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            head = await self.call("HEAD", path)
            offset = int(head.headers.get("upload-offset", 0)) if head.status_code == 200 else 0
            headers = {"content-length": str(len(content) - offset)}
            if offset:
                headers["content-range"] = f"bytes {offset}-{len(content) - 1}/{len(content)}"
            if offset and offset >= len(content):
                return True
            rest = content[offset:]
            is_cut = self.random.random() < cut_share
            cut = self.random.randrange(len(rest) + 1) if is_cut else None
            sent = await self.once("PUT", path, content=_cut(rest, cut), headers=headers)
            if sent is not None and sent.status_code == 200 and sent.json().get("complete", True):
                return True
            await asyncio.sleep(0.3)
        raise GaveUpError(f"PUT {path}")

    async def settle(self) -> None:
        for held in self.held:
            found = await self.call("GET", f"/v1/model-artifacts/{held.id}")
            if found.status_code != 200 or found.json()["status"] != "ready":
                self.tally.lose(f"artifact {held.id} was acknowledged, and is {found.text}")
                continue
            folder = self.world.data_dir / "blobs" / "artifacts" / held.id
            stored = [hashlib.sha256(one.read_bytes()).hexdigest() for one in _files(folder)]
            if sorted(stored) != sorted(held.digests):
                self.tally.lose(f"artifact {held.id} has other bytes than were sent")
        for identifier in self.gone[-50:]:
            found = await self.call("GET", f"/v1/model-artifacts/{identifier}")
            if found.status_code != 404:
                self.tally.lose(f"artifact {identifier} was deleted, and is {found.status_code}")


def _files(folder: Path) -> list[Path]:
    return [one for one in folder.rglob("*") if one.is_file()]


async def _cut(content: bytes, at: int | None) -> AsyncIterator[bytes]:
    """A body in pieces that breaks off, or does not."""
    for start in range(0, len(content), 65536):
        if at is not None and start + 65536 > at:
            yield content[start:at]
            raise httpx.WriteError("cut on purpose")
        yield content[start : start + 65536]


class Keys(Actor):
    """Makes keys and revokes them: those that live are taken, the others are not."""

    name = "keys"
    pause_s = 2

    def __init__(self, world: World, seed: str) -> None:
        super().__init__(world, seed)
        self.living: dict[str, str] = {}
        self.revoked: list[str] = []

    async def act(self) -> None:
        body = {"scope": "account", "account_id": self.world.account_id}
        made = await self.call("POST", "/v1/api-keys", json=body)
        if made.status_code != 201:
            self.tally.lose(f"no key could be made: {made.text}")
            return
        self.living[made.json()["id"]] = made.json()["key"]
        self.tally.done["keys made"] += 1
        if len(self.living) > 5:
            identifier = self.random.choice([*self.living])
            gone = await self.call("DELETE", f"/v1/api-keys/{identifier}")
            if gone.status_code in (200, 404):
                self.revoked.append(self.living.pop(identifier))
                self.tally.done["keys revoked"] += 1
        await self.check(self.random.choice([*self.living.values()]), 200)
        if self.revoked:
            await self.check(self.random.choice(self.revoked), 401)

    async def check(self, key: str, expected: int) -> None:
        found = await self.call("GET", "/v1/models", headers={"authorization": f"Bearer {key}"})
        if found.status_code != expected:
            self.tally.lose(f"a key was answered {found.status_code}, not {expected}: {found.text}")

    async def settle(self) -> None:
        for key in self.living.values():
            await self.check(key, 200)
        for key in self.revoked[-50:]:
            await self.check(key, 401)


class Rude(Actor):
    """Connects and says nothing, sends half a request, reads nothing of what it asked for."""

    name = "rude peers"
    pause_s = 1

    async def act(self) -> None:
        host, _, port = self.world.base_url.removeprefix("http://").rpartition(":")
        key = f"authorization: Bearer {self.world.key}\r\n"
        sent = self.random.choice(
            (
                "",
                "GET /health HTTP/1.1\r\nhost: a\r\nx-",
                f"POST /v1/responses HTTP/1.1\r\nhost: a\r\n{key}content-length: 900\r\n\r\n{{",
                f"GET /v1/models HTTP/1.1\r\nhost: a\r\n{key}\r\n" * 20,
                "\x16\x03\x01 nonsense\r\n\r\n",
            )
        )
        try:
            _, writer = await asyncio.open_connection(host, int(port))
        except OSError:
            return
        self.tally.done["rude connections"] += 1
        with contextlib.suppress(OSError):
            writer.write(sent.encode("latin-1"))
            await asyncio.sleep(self.random.uniform(0, 3))
            writer.close()
            await writer.wait_closed()
