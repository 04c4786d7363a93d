"""Compressed request bodies are read like plain ones, within the limits, or rejected."""

import gzip
import io
import json
import zlib
from collections.abc import AsyncIterator, Callable

import httpx
import pytest
import zstandard

from tests.support.app import App, serving

BODY = json.dumps({"name": "zebra"}).encode()


def zstd(content: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(content)


def in_two_members(content: bytes) -> bytes:
    return gzip.compress(content[:9]) + gzip.compress(content[9:])


ENCODINGS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress),
    "x-gzip": ("X-GZIP", gzip.compress),
    "several members": ("gzip", in_two_members),
    "deflate": ("deflate", zlib.compress),
    "zstd": ("zstd", zstd),
    "identity": ("identity", bytes),
}


@pytest.fixture(scope="module")
async def operator(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[httpx.AsyncClient]:
    data_dir = tmp_path_factory.mktemp("encodings") / "data"
    async with serving(data_dir) as app, client_of(app) as client:
        yield client


def client_of(app: App) -> httpx.AsyncClient:
    client = app.client(app.operator_key)
    client.headers["content-type"] = "application/json"
    return client


async def sent(client: httpx.AsyncClient, encoding: str, content: bytes) -> httpx.Response:
    headers = {"content-encoding": encoding}
    return await client.post("/v1/accounts", content=content, headers=headers)


@pytest.mark.parametrize(("encoding", "pack"), ENCODINGS.values(), ids=ENCODINGS)
async def test_is_read(
    operator: httpx.AsyncClient, encoding: str, pack: Callable[[bytes], bytes]
) -> None:
    answer = await sent(operator, encoding, pack(BODY))
    assert (answer.status_code, answer.json()["name"]) == (201, "zebra"), answer.text


@pytest.mark.parametrize("encoding", ["br", "compress", "gzip, gzip"])
async def test_unknown_ones_are_named(operator: httpx.AsyncClient, encoding: str) -> None:
    answer = await sent(operator, encoding, BODY)
    assert answer.status_code == 415
    assert "gzip, deflate" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "content",
    [b"", BODY, gzip.compress(BODY)[:-9], gzip.compress(BODY) + b"more", zlib.compress(BODY)],
    ids=["empty", "plain", "cut", "longer", "deflate"],
)
async def test_damaged(operator: httpx.AsyncClient, content: bytes) -> None:
    answer = await sent(operator, "gzip", content)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "Content-Encoding")


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
async def test_one_that_grows_without_end(operator: httpx.AsyncClient, encoding: str) -> None:
    """A body of at most a megabyte that expands to 128 MiB or more is rejected."""
    target = io.BytesIO()
    if encoding == "gzip":
        with gzip.GzipFile(fileobj=target, mode="wb", compresslevel=1) as file:
            for _ in range(8):
                file.write(bytes(16 << 20))
    else:
        target.write(zstd(bytes(256 << 20)) * 4)
    answer = await sent(operator, encoding, target.getvalue())
    assert answer.status_code == 413, answer.text


async def test_bad_key_comes_first(operator: httpx.AsyncClient) -> None:
    headers = {"content-encoding": "br", "authorization": "Bearer sk-0-0"}
    answer = await operator.post("/v1/accounts", content=BODY, headers=headers)
    assert answer.status_code == 401
