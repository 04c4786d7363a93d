"""Origins in the form that browsers send and operators configure (RFC 6454, section 6.1)."""

import re
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

ANY = "*"
_DEFAULT_PORTS = {"http": 80, "https": 443}
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")


def _origin(value: str) -> str:
    """Returns an origin if it is written as browsers send it. Otherwise raises `ValueError` with
    the correct form.
    """
    if value == ANY:
        return value
    if ANY in value:
        raise ValueError(
            f"'{value}' is invalid: '*' allows all origins and must stand alone. "
            "List each origin instead"
        )
    right = _written(value)
    if right is None:
        raise ValueError(
            f"'{value}' is not an origin. Use a scheme, a host and an optional port, as in "
            "'https://chat.example' or 'http://localhost:3000', or '*' for all origins"
        )
    if right != value:
        raise ValueError(f"'{value}' differs from the form that browsers send. Use '{right}'")
    return value


def _written(value: str) -> str | None:
    """Returns the origin of a URL in the form that browsers send, or None if it has no origin."""
    try:
        parts = urlsplit(value.strip())
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    if not host or not _SCHEME.fullmatch(parts.scheme) or re.search(r"\s", host):
        return None
    try:
        host = host.encode("ascii" if host.isascii() else "idna").decode()
    except UnicodeError:
        return None
    shown = f"[{host}]" if ":" in host else host
    is_default = port is None or port == _DEFAULT_PORTS.get(parts.scheme)
    return f"{parts.scheme}://{shown}{'' if is_default else f':{port}'}"


Origin = Annotated[str, Field(max_length=512), AfterValidator(_origin)]
