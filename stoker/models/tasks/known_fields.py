"""Request fields of other servers, and the effect of each field on this server.

The table known_fields.txt drives the check of requests (`field_checks`), the page docs/fields.md
and a test over all names of other servers' protocols.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

Endpoint = Literal[
    "chat", "completions", "responses", "embeddings", "rerank", "transcriptions", "translations"
]
ENDPOINTS: Mapping[Endpoint, str] = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "embeddings": "/v1/embeddings",
    "rerank": "/v1/rerank",
    "transcriptions": "/v1/audio/transcriptions",
    "translations": "/v1/audio/translations",
}
GROUPS: Mapping[str, Sequence[Endpoint]] = {
    "all": list(ENDPOINTS),
    "text": ["chat", "completions", "responses"],
    "vectors": ["embeddings", "rerank"],
    "audio": ["transcriptions", "translations"],
}
Effect = Literal["honoured", "no effect", "refused"]


@dataclass(frozen=True, kw_only=True)
class KnownField:
    """A field and its effect on an endpoint."""

    name: str
    dialects: tuple[str, ...]
    """Servers and APIs that know the field."""
    effect: Effect
    why: str = ""
    """Reason, as the rest of a sentence that begins with the field's name."""
    accepted: tuple[Any, ...] = ()
    """Accepted values of a refused field: they request what the server does anyway."""

    def accepts(self, value: Any) -> bool:
        """Returns True if a request may have the value. Null counts as an omitted field."""
        if self.effect != "refused" or value is None:
            return True
        return any(_equal(value, accepted) for accepted in self.accepted)


def _equal(value: Any, accepted: Any) -> bool:
    # Form fields are strings. In Python, True equals 1.
    if isinstance(value, str) and not isinstance(accepted, str):
        return value.lower() == json.dumps(accepted)
    return isinstance(value, bool) == isinstance(accepted, bool) and value == accepted


def _rows() -> Iterable[tuple[Sequence[Endpoint], KnownField]]:
    for line in Path(__file__).with_suffix(".txt").read_text("utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        places, dialects, names, effect, accepted, why = (
            part.strip() for part in f"{line} | | |".split("|")[:6]
        )
        endpoints: list[Endpoint] = []
        for place in places.split():
            endpoints += GROUPS.get(place) or [cast("Endpoint", place)]
        for name in names.split():
            yield (
                endpoints,
                KnownField(
                    name=name,
                    dialects=tuple(dialects.split()),
                    effect=cast("Effect", effect),
                    why=why,
                    accepted=tuple(json.loads(accepted or "[]")),
                ),
            )


def _table() -> tuple[Mapping[Endpoint, Mapping[str, KnownField]], Mapping[str, tuple[str, ...]]]:
    rows: dict[Endpoint, dict[str, KnownField]] = {endpoint: {} for endpoint in ENDPOINTS}
    dialects: dict[str, tuple[str, ...]] = {}
    for endpoints, row in _rows():
        dialects[row.name] = tuple(dict.fromkeys((*dialects.get(row.name, ()), *row.dialects)))
        for endpoint in endpoints:
            # A row for one endpoint follows the row for all endpoints and overrides it.
            rows[endpoint][row.name] = row
    return rows, dialects


FIELDS, DIALECTS = _table()
"""`FIELDS` maps each endpoint to its fields by name. `DIALECTS` maps a field's name to the dialects
that know it.
"""
