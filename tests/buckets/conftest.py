"""Servers whose blobs are in a bucket, behind a proxy that can fail."""

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
"""How long the server asks a bucket again, and half of it each time: faults that are to pass take
less, on a busy machine too, others for ever.
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
    with faulty(s3) as found, pytest.MonkeyPatch.context() as patch:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        patch.setenv("AWS_ENDPOINT_URL", found.address)
        yield found


@pytest.fixture(autouse=True)
def healed(proxy: Proxy) -> Iterator[None]:
    proxy.seen.clear()
    yield
    proxy.heal()


@pytest.fixture(scope="module")
def url() -> str:
    """Of a prefix of the module's own."""
    return f"s3://{BUCKET}/{secrets.token_hex(8)}"


@pytest.fixture(scope="module")
def behind(s3: str, url: str) -> S3Store:
    """What the bucket has, past the proxy and our own code."""
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
    """All that the bucket has below a prefix."""
    return sorted(one["path"] for some in obstore.list(store, prefix) for one in some)
