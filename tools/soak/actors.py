"""Users of the server in a soak test. Each acts by its seed over HTTP and counts the results.

An actor relies on responses: acknowledged objects must exist later, and deleted ones must be
absent. After a broken connection, it finds out the state.
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
"""Response statuses that allow a retry. 0 means that no response arrived."""
CUT_SHARE = 0.2
"""Share of file uploads and streams that are cut."""
PATIENCE_S = 240
"""Time in seconds for retries of one call. Covers a server's restart and a full disk."""


class GaveUpError(Exception):
    """Raised if a call never got a definite response."""


@dataclass
class World:
    """State that all actors share."""

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
    """A user that acts until the world stops."""

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
        """Checks after all faults that everything acknowledged exists."""

    async def once(self, method: str, path: str, **options: Any) -> httpx.Response | None:
        """Sends a request once. Returns None if the connection broke."""
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
        """Retries a request until it gets a definite response. Raises `GaveUpError`."""
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
    """An acknowledged artifact, with the digests of the sent files."""

    id: str
    digests: list[str]
    """SHA-256 digests of its files."""


class Uploader(Actor):
    """Pushes models over connections that are cut at any byte, and deletes some of the models."""

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
        """Uploads a folder's files. Returns None if a lost response cannot be recovered."""
        body = {"display_name": folder.name}
        made = await self.call("POST", "/v1/model-artifacts", json=body)
        if made.status_code != 201:
            self.tally.lose(f"no artifact could be made: {made.text}")
            return None
        identifier = made.json()["id"]
        path = f"/v1/model-artifacts/{identifier}"
        opened = await self.call("POST", f"{path}/uploads")
        if opened.status_code != 201:
            # The first try succeeded but its response was lost, so the artifact already has an
            # upload.
            await self.call("DELETE", path)
            return None
        session = f"{path}/uploads/{opened.json()['upload_id']}"
        digests: list[str] = []
        for file in sorted(entry for entry in folder.rglob("*") if entry.is_file()):
            content, name = file.read_bytes(), file.relative_to(folder).as_posix()
            if not await self._send(f"{session}/files/{name}", content, cut_share):
                return None
            digests.append(hashlib.sha256(content).hexdigest())
        done = await self.call("POST", f"{session}/complete")
        if done.status_code not in (200, 409):
            self.tally.lose(f"a session could not be completed: {done.text}")
            return None
        response = await self.call("GET", path)
        if response.json().get("status") != "ready":
            self.tally.lose(f"a completed artifact is {response.text}")
            return None
        return NodeLease(identifier, digests)

    async def _send(self, path: str, content: bytes, cut_share: float) -> bool:
        """Sends a whole file. Resumes at the position of a cut."""
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
        for artifact in self.held:
            response = await self.call("GET", f"/v1/model-artifacts/{artifact.id}")
            if response.status_code != 200 or response.json()["status"] != "ready":
                self.tally.lose(f"artifact {artifact.id} was acknowledged, and is {response.text}")
                continue
            folder = self.world.data_dir / "blobs" / "artifacts" / artifact.id
            stored = [hashlib.sha256(file.read_bytes()).hexdigest() for file in _files(folder)]
            if sorted(stored) != sorted(artifact.digests):
                self.tally.lose(f"artifact {artifact.id} has other bytes than were sent")
        for identifier in self.gone[-50:]:
            response = await self.call("GET", f"/v1/model-artifacts/{identifier}")
            if response.status_code != 404:
                self.tally.lose(f"artifact {identifier} was deleted, and is {response.status_code}")


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


async def _cut(content: bytes, at: int | None) -> AsyncIterator[bytes]:
    """Yields a body in pieces, and breaks off at a position if one is passed."""
    for start in range(0, len(content), 65536):
        if at is not None and start + 65536 > at:
            yield content[start:at]
            raise httpx.WriteError("cut on purpose")
        yield content[start : start + 65536]


class Keys(Actor):
    """Creates and revokes keys. Checks that active keys are accepted and revoked ones rejected."""

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
        response = await self.call("GET", "/v1/models", headers={"authorization": f"Bearer {key}"})
        if response.status_code != expected:
            self.tally.lose(
                f"a key was answered {response.status_code}, not {expected}: {response.text}"
            )

    async def settle(self) -> None:
        for key in self.living.values():
            await self.check(key, 200)
        for key in self.revoked[-50:]:
            await self.check(key, 401)


class Rude(Actor):
    """Connects without sending, sends half a request, or does not read its responses."""

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
