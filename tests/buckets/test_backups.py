"""A service with PostgreSQL and a bucket is saved while uploads continue, and restored in another
place: first the database, then the bucket.
"""

import contextlib
import os
import secrets
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import obstore
import pytest
from obstore.store import S3Store

from tests.artifacts.support import ARTIFACTS
from tests.buckets.conftest import keys
from tests.deployments.support import call, deploy, upload
from tests.servers.support import until
from tests.support import postgres
from tests.support.bucket import BUCKET
from tests.support.server import Server, running

pytestmark = pytest.mark.release


class Uploads:
    """Uploads models one after another."""

    def __init__(self, server: Server, client: httpx.Client) -> None:
        self._server, self._client = server, client
        self._ended = threading.Event()
        self.done: list[str] = []

    def _run(self) -> None:
        while not self._ended.is_set():
            self.done.append(upload(self._server, self._client))

    @contextlib.contextmanager
    def going(self) -> Iterator[None]:
        thread = threading.Thread(target=self._run)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()


def pg(program: str, url: str, *arguments: str) -> None:
    """Runs a program of PostgreSQL for a database."""
    path = shutil.which(program)
    if path is None:
        pytest.skip(f"{program} was not found")
    plain = url.replace("+asyncpg", "")
    subprocess.run([path, f"--dbname={plain}", *arguments], check=True, timeout=60)


def artifacts(client: httpx.Client) -> dict[str, str]:
    found = client.get(ARTIFACTS, params={"limit": 100}).raise_for_status().json()["data"]
    return {artifact["id"]: artifact["status"] for artifact in found}


def test_the_restored_service_answers_the_same(
    proxy: object, s3: str, url: str, behind: S3Store, tmp_path: Path
) -> None:
    dump, copy = tmp_path / "stoker.dump", f"{url}-copy"
    aws = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    with postgres.running() as database:
        env = {"STOKER_DATABASE_URL": database, "STOKER_BLOB_URL": url, **aws}
        with running(tmp_path / "source", **env) as server, server.account() as client:
            deploy(client, upload(server, client), "kept")
            before = call(client, "kept", wait=120).raise_for_status().json()
            key = client.headers["authorization"].removeprefix("Bearer ")
            uploads = Uploads(server, client)
            with uploads.going():
                until(lambda: len(uploads.done) >= 2)
                confirmed = {*uploads.done}
                pg("pg_dump", database, "--format=custom", f"--file={dump}")
                until(lambda: len(uploads.done) > len(confirmed))
            deleted, kept, *_ = sorted(confirmed)
            client.delete(f"{ARTIFACTS}/{deleted}").raise_for_status()
            copied(behind, s3, copy)
        name = f"restored_{secrets.token_hex(4)}"
        pg("psql", database, "--quiet", f"--command=CREATE DATABASE {name}")
        restored = f"{database.rpartition('/')[0]}/{name}"
        pg("pg_restore", restored, "--no-owner", str(dump))
        env |= {"STOKER_DATABASE_URL": restored, "STOKER_BLOB_URL": copy}
        with running(tmp_path / "restored", **env) as server, server.client(key) as client:
            assert call(client, "kept", wait=120).raise_for_status().json() == before
            found = artifacts(client)
            assert confirmed <= {one for one, status in found.items() if status == "ready"}
            # A model that was deleted between the two steps is listed without its files.
            client.delete(f"{ARTIFACTS}/{deleted}").raise_for_status()
            deploy(client, kept, "again")
            assert call(client, "again", wait=120).raise_for_status().json() == before


def copied(source: S3Store, address: str, copy: str) -> None:
    """Copies all objects of a prefix to another one, as a bucket's own tools do."""
    target = S3Store(
        BUCKET,
        prefix=copy.removeprefix(f"s3://{BUCKET}/"),
        endpoint=address,
        access_key_id="tests",
        secret_access_key="only-of-tests",
        region="us-east-1",
        client_options={"allow_http": True},
    )
    for key in keys(source):
        # Objects may be deleted during the copy.
        with contextlib.suppress(FileNotFoundError):
            obstore.put(target, key, obstore.get(source, key).bytes())
