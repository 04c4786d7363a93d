"""Built files of the console, read once. One document serves all of the console's addresses.

The files are built from `frontend/` into static/ without knowing their URL prefix. The prefix is
inserted into the document when it is sent.
"""

import asyncio
import gzip
import hashlib
import html
import mimetypes
import re
from dataclasses import dataclass
from pathlib import Path

from stoker.base.errors import NotFoundError

STATIC = Path(__file__).parent / "static"
INDEX = "index.html"
_BASE = '<meta name="stoker-base" content="/">'
_RELATIVE = re.compile(r'\b(src|href)="\./')
_PACKED = ".gz"
_LEAST_PACKED = 512
"""Minimum size in bytes of a file that is compressed. Smaller files gain nothing."""
_TYPES = {".js": "text/javascript", ".webmanifest": "application/manifest+json"}
_TEXTS = ("text/", "application/json", "application/manifest+json", "image/svg+xml")


@dataclass(frozen=True)
class ConsolePage:
    content: bytes
    packed: bytes | None
    """Content compressed by gzip. None if that is not smaller."""
    media_type: str
    etag: str

    @classmethod
    def of(cls, content: bytes, media_type: str, packed: bytes | None = None) -> "ConsolePage":
        is_text = media_type.startswith(_TEXTS)
        if packed is None and is_text and len(content) >= _LEAST_PACKED:
            packed = gzip.compress(content, mtime=0)
        if packed is not None and len(packed) >= len(content):
            packed = None
        charset = "; charset=utf-8" if is_text else ""
        digest = hashlib.sha256(content).hexdigest()[:32]
        return cls(content, packed, media_type + charset, digest)


class Pages:
    """Built files of the console. Reads them once, and again after each new build."""

    def __init__(self, folder: Path = STATIC) -> None:
        self._folder = folder
        self._built: int | None = None
        self._files: dict[str, ConsolePage] = {}
        self._documents: dict[str, ConsolePage] = {}

    async def file(self, path: str) -> ConsolePage | None:
        """Returns the file at a path below the folder. None if it does not exist."""
        await self._read()
        return self._files.get(path)

    async def document(self, prefix: str) -> ConsolePage:
        """Returns the document for a server that is reached below a prefix such as `/models`.

        Raises `NotFoundError` if the console is not built.
        """
        await self._read()
        if prefix not in self._documents:
            self._documents[prefix] = _placed(self._files[INDEX], prefix)
        return self._documents[prefix]

    async def _read(self) -> None:
        try:
            built = (self._folder / INDEX).stat().st_mtime_ns
        except OSError:
            raise NotFoundError(
                "This installation does not contain the console's pages. Releases contain them. "
                "In a checkout, build them with 'make console' (needs Node).",
                code="console_not_built",
            ) from None
        if built != self._built:
            files = await asyncio.to_thread(_read_all, self._folder)
            self._files, self._documents, self._built = files, {}, built


def _read_all(folder: Path) -> dict[str, ConsolePage]:
    contents = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    return {
        name: ConsolePage.of(content, _type_of(name), contents.get(name + _PACKED))
        for name, content in contents.items()
        if not name.endswith(_PACKED)
    }


def _type_of(name: str) -> str:
    suffix = Path(name).suffix
    return _TYPES.get(suffix) or mimetypes.guess_type(name)[0] or "application/octet-stream"


def _placed(document: ConsolePage, prefix: str) -> ConsolePage:
    """Returns the document with absolute addresses, because it is sent for deep links, too."""
    base = html.escape(prefix, quote=True)
    text = document.content.decode().replace(_BASE, _BASE.replace("/", f"{base}/", 1))
    text = _RELATIVE.sub(lambda match: f'{match[1]}="{base}/console/', text)
    return ConsolePage.of(text.encode(), "text/html")
