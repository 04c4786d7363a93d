"""Requests of the API, and their conversion to arguments of httpx."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

JsonObject = dict[str, Any]
Files = Sequence[tuple[str, Path | bytes | str]]
"""Form fields with their files or text values. Names may repeat."""
Query = Mapping[str, str | int | float | Sequence[str]]

CONNECT_TIMEOUT_S = 10.0
TIMEOUT_S = 120.0


@dataclass(frozen=True, kw_only=True)
class ApiRequest:
    method: str
    path: str
    json: Any = None
    params: Query = field(default_factory=dict[str, "str | int | float | Sequence[str]"])
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    content: Iterable[bytes] | None = None
    files: Files = ()
    """Files of the request. A request with files is sent as a form that includes the fields of
    `json`.
    """
    timeout_s: float = TIMEOUT_S

    @property
    def is_repeatable(self) -> bool:
        """True if a second execution changes nothing."""
        return self.method in ("GET", "PUT") or "idempotency-key" in self.headers

    def arguments(self, base_url: str) -> JsonObject:
        """Returns the arguments of httpx's `build_request`. Reads the files."""
        import httpx

        return {
            "method": self.method,
            "url": base_url + self.path,
            **(_form(self.files, self.json or {}) if self.files else {"json": self.json}),
            "params": dict(self.params) or None,
            "headers": dict(self.headers),
            "content": self.content,
            "timeout": httpx.Timeout(self.timeout_s, connect=CONNECT_TIMEOUT_S),
        }


def quoted(*parts: str) -> str:
    """Quotes path segments of a URL. A slash inside a part is kept."""
    return "/".join(quote(part, safe="/") for part in parts)


def _form(files: Files, fields: JsonObject) -> JsonObject:
    return {
        "files": [(name, _file(content)) for name, content in files],
        "data": {name: _form_value(value) for name, value in fields.items()},
    }


def _file(content: Path | bytes | str) -> tuple[str | None, bytes | str]:
    if isinstance(content, Path):
        return content.name, content.read_bytes()
    return ("file", content) if isinstance(content, bytes) else (None, content)


def _form_value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
