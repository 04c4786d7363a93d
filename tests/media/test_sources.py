import base64
import os
import random
import urllib.parse
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from stoker.base.errors import InvalidMediaError
from stoker.media import sources

LIMIT = 4 * 1024 * 1024
# Covers every character of both alphabets. The length is no multiple of three.
BYTES = bytes(range(256)) * 3 + b"\xff"
JPEG = b"\xff\xd8\xff\xe0" + BYTES


class Fetched:
    """A stand-in for the fetcher, which has its own tests."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int, float | None]] = []

    async def fetch(self, url: str, *, limit_bytes: int, timeout_s: float | None) -> bytes:
        self.calls.append((url, limit_bytes, timeout_s))
        return b"fetched"


async def load(
    source: str, folders: Sequence[Path] = (), limit_bytes: int = LIMIT, fetcher: object = None
) -> bytes:
    return await sources.load(
        source,
        fetcher=fetcher or Fetched(),  # type: ignore[arg-type]
        folders=folders,
        limit_bytes=limit_bytes,
        timeout_s=7,
    )


async def refused(source: str, folders: Sequence[Path] = (), limit_bytes: int = LIMIT) -> str:
    with pytest.raises(InvalidMediaError) as caught:
        await load(source, folders, limit_bytes)
    return caught.value.message


class TestForms:
    @pytest.mark.parametrize("url", ["http://a.test/", "HTTPS://a.test/x", " https://a.test\n"])
    async def test_url(self, url: str) -> None:
        fetcher = Fetched()
        assert await load(url, fetcher=fetcher) == b"fetched"
        assert fetcher.calls == [(url.strip(), LIMIT, 7)]

    @pytest.mark.parametrize("scheme", ["ftp", "gopher", "s3", "C", "javascript", "blob"])
    async def test_other_schemes(self, scheme: str) -> None:
        message = await refused(f"{scheme}://a.test/cat.png")
        assert "http(s) URL" in message
        assert f"'{scheme.lower()}:'" in message

    @pytest.mark.parametrize("source", ["", "  ", "\n"])
    async def test_empty(self, source: str) -> None:
        assert "empty" in await refused(source)


class TestBase64:
    @pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
    @pytest.mark.parametrize("media", [BYTES, BYTES + b"1", BYTES + b"12", JPEG])
    async def test_alphabets_and_padding(
        self, encode: Callable[[bytes], bytes], media: bytes
    ) -> None:
        text = encode(media).decode()
        assert await load(text) == media
        assert await load(text.rstrip("=")) == media

    async def test_lines(self) -> None:
        text = base64.encodebytes(BYTES).decode()
        assert await load(text) == BYTES
        assert await load(text.replace("\n", "\r\n")) == BYTES

    @pytest.mark.parametrize("head", [b"\xff\xd8\xff\xdb", b"\xff\xfb\x90", b"\xff\xf1\x50"])
    async def test_slash_in_front_is_no_path(self, head: bytes) -> None:
        """JPEG, MP3 and ADTS in base64 begin with a slash."""
        text = base64.b64encode(head + BYTES).decode()
        assert text.startswith("/")
        assert await load(text) == head + BYTES

    @pytest.mark.parametrize("head", [b"", b"\xfc\x00"])
    async def test_large(self, head: bytes) -> None:
        """A text longer than a path is base64, even if it begins with a slash."""
        media = head + random.Random(0).randbytes(LIMIT - 1 - len(head))
        assert await load(base64.b64encode(media).decode()) == media

    @pytest.mark.parametrize(
        "text",
        ["a", "abcde", "ab=c", "abc===", "=", "cat.png", "a b?c", "ab\x00c", "äöüß", "\ud800aaa"],
    )
    async def test_invalid(self, text: str) -> None:
        assert "data URI" in await refused(text)

    async def test_limit(self) -> None:
        text = base64.b64encode(bytes(1000)).decode()
        assert len(await load(text, limit_bytes=1000)) == 1000
        assert "999 bytes" in await refused(text, limit_bytes=999)

    async def test_limit_comes_before_decoding(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("stoker.media.sources.binascii", None)
        await refused("A" * 2000, limit_bytes=1000)


class TestDataUris:
    @pytest.mark.parametrize(
        "head",
        [
            "data:image/png;base64,",
            "data:;base64,",
            "DATA:image/png;BASE64,",
            "data:image/svg+xml;charset=utf-8;base64,",
        ],
    )
    async def test_base64(self, head: str) -> None:
        text = base64.b64encode(BYTES).decode()
        assert await load(head + text) == BYTES
        assert await load(head + urllib.parse.quote(text, safe="")) == BYTES

    @pytest.mark.parametrize("head", ["data:,", "data:text/plain,", "data:text/plain;charset=x,"])
    async def test_percent_encoded(self, head: str) -> None:
        assert await load(head + urllib.parse.quote_from_bytes(BYTES)) == BYTES

    async def test_comma_in_data(self) -> None:
        assert await load("data:,a,b") == b"a,b"

    @pytest.mark.parametrize(
        "source", ["data:", "data:image/png;base64", "data:,ä", "data:,\ud800"]
    )
    async def test_malformed(self, source: str) -> None:
        assert "malformed" in await refused(source)

    @pytest.mark.parametrize("source", ["data:,", "data:image/png;base64,"])
    async def test_empty(self, source: str) -> None:
        assert "empty" in await refused(source)

    async def test_invalid_base64(self) -> None:
        assert "not valid base64" in await refused("data:;base64,%C3%A4")

    async def test_limit(self) -> None:
        assert len(await load("data:," + "%20" * 10, limit_bytes=10)) == 10
        assert "limit" in await refused("data:," + "%20" * 11, limit_bytes=10)
        assert "limit" in await refused("data:," + "%%%%%%%%%%%%%%%", limit_bytes=10)
        assert "limit" in await refused("data:;base64," + "AAAA" * 4, limit_bytes=10)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "media"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "a cat.png").write_bytes(b"cat")
    (folder / "empty").touch()
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "media-secret").write_bytes(b"secret")
    return folder


class TestPaths:
    async def test_read(self, folder: Path) -> None:
        path = folder / "sub" / "a cat.png"
        assert await load(str(path), [folder]) == b"cat"
        assert await load(path.as_uri(), [folder]) == b"cat"
        assert await load(f"FILE://localhost{path}", [folder.parent / "none", folder]) == b"cat"

    async def test_link_inside(self, folder: Path) -> None:
        (folder / "link").symlink_to(folder / "sub")
        assert await load(str(folder / "link" / "a cat.png"), [folder]) == b"cat"

    async def test_folder_that_is_a_link(self, folder: Path, tmp_path: Path) -> None:
        (tmp_path / "alias").symlink_to(folder)
        assert await load(str(tmp_path / "alias/sub/a cat.png"), [tmp_path / "alias"]) == b"cat"
        assert await load(str(folder / "sub/a cat.png"), [tmp_path / "alias"]) == b"cat"

    async def test_without_folders(self, folder: Path) -> None:
        assert "STOKER_MEDIA_DIRS" in await refused(str(folder / "sub" / "a cat.png"))

    async def test_longer_than_a_path(self, folder: Path) -> None:
        """A string of this length is read as base64, regardless of its beginning."""
        assert "not valid base64" in await refused(f"{folder}/{'a./' * 1400}", [folder])
        assert "STOKER_MEDIA_DIRS" in await refused(f"file://{folder}/{'a/' * 3000}", [folder])

    async def test_same_answer_for_all(self, folder: Path, tmp_path: Path) -> None:
        (folder / "escape").symlink_to(tmp_path / "secret")
        (folder / "dangling").symlink_to(tmp_path / "nothing")
        (folder / "up").symlink_to(tmp_path)
        (folder / "loop").symlink_to(folder / "loop")
        (folder / "null").symlink_to("/dev/zero")
        os.mkfifo(folder / "fifo")
        messages = [
            await refused(source, [folder])
            for source in (
                str(tmp_path / "secret"),
                str(tmp_path / "nothing"),
                str(tmp_path / "media-secret"),
                f"{folder}/../secret",
                f"{folder}/sub/../../secret",
                f"file://{folder}/%2e%2e/secret",
                f"file://other.test{folder}/sub/a%20cat.png",
                f"{folder}/escape",
                f"{folder}/dangling",
                f"{folder}/up/secret",
                f"{folder}/loop",
                f"{folder}/null",
                f"{folder}/fifo",
                f"{folder}/sub",
                f"{folder}",
                f"{folder}/nothing",
                f"{folder}/sub/a cat.png/x",
                f"{folder}/\x00",
                f"{folder}/\ud800",
                f"{folder}/{'a' * 300}",
                f"{folder}/{'a/' * 1500}",
                "/etc/passwd",
                "/proc/self/environ",
                "/dev/zero",
                "file:///etc/passwd",
                "file:/etc/passwd",
                "file:relative",
                "file:",
                "/",
            )
        ]
        assert len(set(messages)) == 1
        assert str(tmp_path) not in messages[0]

    async def test_link_swapped_in_after_the_check(
        self, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file = folder / "sub" / "a cat.png"
        open_below = sources._open_below

        def swap(inside: Path, relative: Path) -> int:
            file.unlink()
            file.symlink_to(tmp_path / "secret")
            return open_below(inside, relative)

        monkeypatch.setattr(sources, "_open_below", swap)
        assert "STOKER_MEDIA_DIRS" in await refused(str(file), [folder])

    async def test_descriptors_are_closed(self, folder: Path) -> None:
        os.mkfifo(folder / "fifo")
        before = len(list(Path("/proc/self/fd").iterdir()))
        for name in ("fifo", "sub", "nothing", "empty"):
            await refused(str(folder / name), [folder])
        assert len(list(Path("/proc/self/fd").iterdir())) == before

    async def test_size(self, folder: Path) -> None:
        path = str(folder / "sub" / "a cat.png")
        assert await load(path, [folder], limit_bytes=3) == b"cat"
        assert "2 bytes" in await refused(path, [folder], limit_bytes=2)
        assert "empty" in await refused(str(folder / "empty"), [folder])
