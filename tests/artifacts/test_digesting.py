"""Digests of files with parts that arrive in any order."""

import asyncio
import hashlib
import itertools
from functools import partial
from pathlib import Path

import pytest

from stoker.base.errors import HubError
from stoker.registry.artifacts.imports.digesting import Digest, Reading
from stoker.registry.hub.client import HubFile
from stoker.store.blobs import Folder

CONTENT = bytes(range(256)) * 40


def reading(folder: Path) -> Reading:
    """Returns a reader of the file in a folder."""
    return partial(Folder(folder).follow, "a", [])


def file(content: bytes = CONTENT, **told: str | None) -> HubFile:
    return HubFile(path="a", size=len(content), **{"sha256": None, "git_sha1": None, **told})


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
async def test_parts_in_any_order(tmp_path: Path, order: tuple[int, ...]) -> None:
    (tmp_path / "a").write_bytes(CONTENT)
    expected = hashlib.sha256(CONTENT)
    digest = Digest(file(sha256=expected.hexdigest()))
    size = len(CONTENT) // 4
    for number in order:
        digest.add(number * size, (number + 1) * size)
        await digest.follow(reading(tmp_path))
    assert await digest.sha256(reading(tmp_path)) == expected.digest()


async def test_by_git(tmp_path: Path) -> None:
    """The digest equals the output of `git hash-object` for these bytes."""
    (tmp_path / "a").write_bytes(b"hello\n")
    expected = "ce013625030ba8dba906f756967f9e9ca394464a"
    digest = Digest(file(b"hello\n", git_sha1=expected))
    digest.add(0, 6)
    assert await digest.sha256(reading(tmp_path)) == hashlib.sha256(b"hello\n").digest()


async def test_of_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    digest = Digest(file(b"", git_sha1="e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"))
    digest.add(0, 0)
    assert await digest.sha256(reading(tmp_path)) == hashlib.sha256().digest()


@pytest.mark.parametrize("told", [{"sha256": "0" * 64}, {"git_sha1": "0" * 40}])
async def test_others(tmp_path: Path, told: dict[str, str]) -> None:
    (tmp_path / "a").write_bytes(CONTENT)
    digest = Digest(file(**told))
    digest.add(0, len(CONTENT))
    with pytest.raises(HubError) as caught:
        await digest.sha256(reading(tmp_path))
    assert caught.value.code == "hub_mismatch"


async def test_a_gap(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(CONTENT)
    digest = Digest(file())
    digest.add(100, len(CONTENT))
    with pytest.raises(HubError):
        await digest.sha256(reading(tmp_path))


async def test_several_at_once(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(CONTENT)
    digest = Digest(file(sha256=hashlib.sha256(CONTENT).hexdigest()))
    for start in range(0, len(CONTENT), 1024):
        digest.add(start, start + 1024)
    await asyncio.gather(*(digest.follow(reading(tmp_path)) for _ in range(8)))
    assert await digest.sha256(reading(tmp_path))
