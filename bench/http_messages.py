"""HTTP/1.1 requests and response heads as bytes, with only the standard library."""

from collections.abc import Mapping
from dataclasses import dataclass

HEAD_END = b"\r\n\r\n"


@dataclass(frozen=True)
class Head:
    """Status line and headers of a response."""

    status: str
    """Status code and reason, for example `404 Not Found`."""
    headers: Mapping[str, str]
    """Maps names in lower case to values."""

    @property
    def code(self) -> str:
        return self.status[:3]


def encode_request(method: str, path: str, headers: Mapping[str, str], body: bytes = b"") -> bytes:
    lines = [
        f"{method} {path} HTTP/1.1",
        *(f"{name}: {value}" for name, value in headers.items()),
        f"content-length: {len(body)}",
    ]
    return "\r\n".join(lines).encode() + HEAD_END + body


def split_head(data: bytes | bytearray) -> tuple[Head, bytes] | None:
    """Returns the head of a response and the data after it. None if the head is incomplete."""
    end = data.find(HEAD_END)
    if end < 0:
        return None
    status, *lines = bytes(data[:end]).decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    headers = {name.lower(): value.strip() for name, _, value in pairs}
    return Head(status.partition(" ")[2], headers), bytes(data[end + len(HEAD_END) :])
