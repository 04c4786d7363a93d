"""Recognizes the heads of plain calls of models. The server reads all other requests.

This accepts less than HTTP allows, so that a worker never interprets a request differently from the
server's own parser.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from stoker.base.config import Settings
from stoker.inference.routes import wait_seconds
from stoker.inference.service_tiers import TIER
from stoker.server.workers.messages import CallerKey
from stoker.tenancy.keys.auth import ACCOUNT_HEADER, KEY_HEADER
from stoker.tenancy.keys.keyring import parsed

MOST_HEAD_BYTES = 8 << 10
END = b"\r\n\r\n"
"""End of a head."""
_REQUEST_LINE = re.compile(rb"POST (/[A-Za-z0-9/_-]{1,200}) HTTP/1\.1")
# Possessive, so that each line is matched in linear time.
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*+([\x20-\x7e]*+)")
_HOST = re.compile(r"([^:]*)(?::[0-9]+)?")
_LENGTH = re.compile(r"[0-9]{1,9}")
_MOST_HEADERS = 64
_CACHED = 512
"""Maximum number of remembered heads."""
_UNUSUAL = frozenset(
    {
        "transfer-encoding",
        "content-encoding",
        "expect",
        "upgrade",
        "trailer",
        "te",
        # An operator's request.
        ACCOUNT_HEADER,
        TIER,
    }
)
"""Headers of requests that the server reads itself."""
_ONCE = frozenset(
    {
        "host",
        "content-length",
        "content-type",
        "authorization",
        KEY_HEADER,
        "connection",
        "prefer",
        "x-request-id",
    }
)


@dataclass(frozen=True, slots=True)
class CallHead:
    """Head of a call with a JSON body."""

    path: str
    length: int
    """Bytes of the body."""
    caller: CallerKey
    wait_s: float
    headers: Mapping[str, str]
    """Headers by lower-case name."""


@dataclass(frozen=True)
class CallHeads:
    """Heads of the calls that a worker may answer, which depend on the server's settings."""

    paths: frozenset[str]
    """Paths of the operations that workers answer."""
    most_body_bytes: int
    has_cross_origin: bool
    """True if pages of other origins may call the server."""
    hosts: frozenset[str] | None
    """Accepted hosts. None means any."""
    settings: Settings

    def cached(self) -> Callable[[bytes], CallHead | None]:
        """Returns `read` with a cache, because clients repeat the same head."""
        return lru_cache(maxsize=_CACHED)(self.read)

    def read(self, head: bytes) -> CallHead | None:
        """Returns the call of a complete head, or None if the server must read the request."""
        lines = head[: -len(END)].split(b"\r\n")
        request = _REQUEST_LINE.fullmatch(lines[0])
        if request is None or (path := request[1].decode()) not in self.paths:
            return None
        headers = _headers(lines[1:])
        return None if headers is None else self._call(path, headers)

    def _call(self, path: str, headers: dict[str, str]) -> CallHead | None:
        length = headers.get("content-length", "")
        token = _bearer(headers.get("authorization", "")) or headers.get(KEY_HEADER, "").strip()
        is_plain = (
            self._is_for_us(headers)
            and headers.get("connection", "keep-alive").lower() == "keep-alive"
            and _is_json(headers.get("content-type"))
            and bool(token)
            and _LENGTH.fullmatch(length) is not None
            and int(length) <= self.most_body_bytes
        )
        if not is_plain:
            return None
        return CallHead(
            path=path,
            length=int(length),
            caller=CallerKey(*parsed(token)),
            wait_s=wait_seconds(self.settings, headers.get("prefer", "")),
            headers=headers,
        )

    def _is_for_us(self, headers: Mapping[str, str]) -> bool:
        host = headers.get("host")
        if host is None:
            return False
        match = _HOST.fullmatch(host)
        if self.hosts is not None and (match is None or match[1] not in self.hosts):
            return False
        return not (self.has_cross_origin and "origin" in headers)


def _headers(lines: list[bytes]) -> dict[str, str] | None:
    """Returns the headers, or None if one is unusual."""
    if len(lines) > _MOST_HEADERS:
        return None
    headers: dict[str, str] = {}
    for line in lines:
        match = _HEADER.fullmatch(line)
        if match is None:
            return None
        name = match[1].decode().lower()
        if name in _UNUSUAL or (name in headers and name in _ONCE):
            return None
        headers.setdefault(name, match[2].decode().rstrip(" "))
    return headers


def _bearer(authorization: str) -> str:
    scheme, _, token = authorization.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _is_json(content_type: str | None) -> bool:
    kind = "application/json" if content_type is None else content_type.partition(";")[0]
    return kind.strip().lower() == "application/json"
