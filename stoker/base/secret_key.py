"""Format of the server's secret in a setting or a file: a Fernet key."""

import base64
from pathlib import Path

from pydantic import SecretStr

BYTES = 32
_FILE_LIMIT = 1024


def checked(value: SecretStr) -> SecretStr:
    """Returns a key if it has the canonical form of Fernet's specification. Servers compare keys as
    text.

    Raises `ValueError`. The message says how to create a key and does not repeat the value.
    """
    text = value.get_secret_value()
    try:
        content = base64.b64decode(text, altchars=b"-_", validate=True)
    except ValueError:
        content = b""
    if len(content) != BYTES or base64.urlsafe_b64encode(content).decode() != text:
        raise ValueError(
            f"must be {BYTES} random bytes in URL-safe base64. Create them with "
            "`openssl rand -base64 32 | tr '+/' '-_'`"
        )
    return value


def read(path: Path) -> SecretStr:
    """Returns the key in a file. The file may contain nothing else except surrounding white space.

    Raises `ValueError` if the file has no valid key or cannot be read.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_FILE_LIMIT)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    return checked(SecretStr(content.decode("ascii", "replace").strip()))
