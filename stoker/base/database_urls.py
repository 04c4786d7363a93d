"""A database's URL, as operators have it from elsewhere."""

SCHEMES = {
    "postgres": "postgresql+asyncpg",
    "postgresql": "postgresql+asyncpg",
    "postgresql+asyncpg": "postgresql+asyncpg",
    "sqlite": "sqlite+aiosqlite",
    "sqlite+aiosqlite": "sqlite+aiosqlite",
}
"""Those that are read, and the driver by which each is opened."""


def checked(value: str) -> str:
    """The URL with its driver, as SQLAlchemy has it; nothing stays nothing.

    Raises `ValueError`, which says nothing of what follows the scheme: that may have a password.
    """
    if not value:
        return value
    scheme, mark, rest = value.partition("://")
    driver = SCHEMES.get(scheme.lower())
    if not mark or driver is None:
        of_it = f" ('{scheme}' is not one that is known)" if mark else ""
        raise ValueError(
            f"must be postgresql://user:password@host:port/database or sqlite:////a/file{of_it}"
        )
    return f"{driver}://{rest}"


def without_password(value: str) -> str:
    """What of a URL may be shown: who, and where."""
    scheme, mark, rest = value.partition("://")
    user, at, place = rest.partition("?")[0].rpartition("@")
    return f"{scheme}{mark}{user.partition(':')[0]}{at}{place}"
