"""Servers with blobs in a bucket, behind a proxy that can fail."""

import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import obstore
import pytest
from obstore.store import S3Store

from tests.support.app import App, serving
from tests.support.bucket import BUCKET, Proxy, faulty, moto
from tests.support.models import tiny_bert

TIMEOUT_S = 4
"""Seconds for which the server retries requests to a bucket. Each request may take half of it.
Temporary faults in the tests are shorter, even on a busy machine. Other faults are permanent.
"""
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "tests",
    "AWS_SECRET_ACCESS_KEY": "only-of-tests",
    "AWS_REGION": "us-east-1",
}


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny, real token classification model."""
    return tiny_bert(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with moto(tmp_path_factory.mktemp("moto") / "log") as address:
        yield address


@pytest.fixture(scope="module")
def proxy(s3: str) -> Iterator[Proxy]:
    with faulty(s3) as started, pytest.MonkeyPatch.context() as patch:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        patch.setenv("AWS_ENDPOINT_URL", started.address)
        yield started


@pytest.fixture(autouse=True)
def healed(proxy: Proxy) -> Iterator[None]:
    proxy.seen.clear()
    yield
    proxy.heal()


@pytest.fixture(scope="module")
def url() -> str:
    """URL of a bucket prefix that only this module uses."""
    return f"s3://{BUCKET}/{secrets.token_hex(8)}"


@pytest.fixture(scope="module")
def behind(s3: str, url: str) -> S3Store:
    """Returns a store that reads the bucket without the proxy and without Stoker's own code."""
    prefix = url.removeprefix(f"s3://{BUCKET}/")
    return S3Store(
        BUCKET,
        prefix=prefix,
        endpoint=s3,
        access_key_id="tests",
        secret_access_key="only-of-tests",
        region="us-east-1",
        client_options={"allow_http": True},
    )


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bucket") / "data"


@pytest.fixture(scope="module")
async def app(proxy: Proxy, url: str, data_dir: Path) -> AsyncIterator[App]:
    settings = {"blob_url": url, "blob_timeout_s": TIMEOUT_S, "upload_part_mib": 1}
    async with serving(data_dir, **settings) as app:
        yield app


@pytest.fixture
async def client(app: App) -> AsyncIterator[httpx.AsyncClient]:
    async with await app.account() as client:
        yield client


def keys(store: S3Store, prefix: str = "") -> list[str]:
    """Returns all keys of the bucket below a prefix."""
    return sorted(item["path"] for some in obstore.list(store, prefix) for item in some)
