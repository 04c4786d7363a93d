"""The profile that `stoker login` saves: a server's address and an API key."""

import json
import os
import stat
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from stoker.base.private_files import write_private
from stoker.client.errors import WrongUseError

_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class Profile:
    base_url: str
    api_key: str

    def is_for(self, base_url: str) -> bool:
        """Returns True if an address is the profile's: same scheme, host, port and path."""
        return _parts(base_url) == _parts(self.base_url)


def path() -> Path | None:
    """Returns the path of the profile. Returns None if the user has no home folder."""
    configured = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    if configured.is_absolute():
        return configured / "stoker" / "profile.json"
    try:
        return Path.home() / ".config" / "stoker" / "profile.json"
    except RuntimeError:
        return None


def read() -> Profile | None:
    """Returns the profile, or None if there is none. Raises `WrongUseError` if it is damaged.

    If others can read the file, prints a warning and closes the file to them.
    """
    file = path()
    if file is None:
        return None
    try:
        with file.open("rb") as opened:
            if (mode := os.fstat(opened.fileno()).st_mode) & _OTHERS:
                os.fchmod(opened.fileno(), stat.S_IMODE(mode) & ~_OTHERS)
                _warn(f"Other users could read {file}. Only you can read it now.")
            content: Any = json.load(opened)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise WrongUseError(
            f"The profile {file} cannot be used: {error.strerror}.", hint=_FIX
        ) from error
    except ValueError as error:
        raise WrongUseError(f"The profile {file} is not JSON: {error}.", hint=_FIX) from error
    return _checked(content, file)


def save(profile: Profile) -> Path:
    """Replaces the profile. Returns its path. Raises `WrongUseError` without a home folder."""
    file = path()
    if file is None:
        raise WrongUseError(
            "You have no home folder for the profile.", hint="Set XDG_CONFIG_HOME to a folder."
        )
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    file.parent.chmod(0o700)
    write_private(file, json.dumps(asdict(profile), indent=2) + "\n")
    return file


def delete() -> bool:
    """Deletes the profile. Returns False if there was none."""
    file = path()
    try:
        if file is not None:
            file.unlink()
            return True
    except (FileNotFoundError, NotADirectoryError):
        pass
    return False


_FIX = "Sign in again with 'stoker login', or delete the profile with 'stoker logout'."


def _checked(content: Any, file: Path) -> Profile:
    fields = cast("dict[str, Any]", content) if isinstance(content, dict) else {}
    base_url, api_key = fields.get("base_url"), fields.get("api_key")
    if not (isinstance(base_url, str) and isinstance(api_key, str) and base_url and api_key):
        raise WrongUseError(f"The profile {file} has no 'base_url' or no 'api_key'.", hint=_FIX)
    return Profile(base_url, api_key)


def _parts(base_url: str) -> tuple[object, ...]:
    """Returns the parts of an address that two names of the same address share."""
    try:
        parts = urlsplit(base_url)
        port = parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return (base_url,)
    user, _, _ = parts.netloc.rpartition("@")
    place = (parts.scheme, user, parts.hostname, port)
    return (*place, parts.path.rstrip("/"), parts.query, parts.fragment)


def _warn(message: str) -> None:
    sys.stderr.write(f"Warning: {message}\n")
