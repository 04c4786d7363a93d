"""What a secret is written as where an operator gives it: a Fernet key, in a setting or a file."""

import base64
from pathlib import Path

from pydantic import SecretStr

BYTES = 32
_FILE_LIMIT = 1024


def checked(value: SecretStr) -> SecretStr:
    """A key in the one way that Fernet's specification writes it: servers compare it as it is.

    Raises `ValueError`, which says how to make one and nothing of what was given.
    """
    given = value.get_secret_value()
    try:
        content = base64.b64decode(given, altchars=b"-_", validate=True)
    except ValueError:
        content = b""
    if len(content) != BYTES or base64.urlsafe_b64encode(content).decode() != given:
        raise ValueError(
            f"must be {BYTES} random bytes in URL-safe base64: make them by "
            "`openssl rand -base64 32 | tr '+/' '-_'`"
        )
    return value


def read(path: Path) -> SecretStr:
    """The key that a file has, and nothing else but white space around it.

    Raises `ValueError` where it has none, or cannot be read.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_FILE_LIMIT)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    return checked(SecretStr(content.decode("ascii", "replace").strip()))
