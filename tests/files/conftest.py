"""A server that accepts files of at most 16 MiB, and clients of it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.support.server import WITHOUT_MODELS, Server, running

MIB = 1 << 20
FILE_LIMIT = 16 * MIB


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    data_dir = tmp_path_factory.mktemp("files") / "data"
    limit = str(FILE_LIMIT / (1 << 30))
    with running(data_dir, STOKER_FILE_LIMIT_GIB=limit, **WITHOUT_MODELS) as server:
        yield server


@pytest.fixture
def owner(small: Server) -> Iterator[Any]:
    """A client with the key of a new account."""
    with small.account() as client:
        yield client


@pytest.fixture
def sdk(small: Server, owner: httpx.Client) -> openai.OpenAI:
    key = str(owner.headers["authorization"]).removeprefix("Bearer ")
    return openai.OpenAI(base_url=f"{small.base_url}/v1", api_key=key, max_retries=0)


def stored(server: Server) -> set[str]:
    """Returns the keys of all blobs of files, finished or not."""
    blobs = Path(server.data_dir) / "blobs"
    folders = ("files", "file-parts", "unfinished")
    return {f"{name}/{path.name}" for name in folders for path in (blobs / name).glob("*")}
