"""Database URLs, in the forms that operators copy from other tools."""

SCHEMES = {
    "postgres": "postgresql+asyncpg",
    "postgresql": "postgresql+asyncpg",
    "postgresql+asyncpg": "postgresql+asyncpg",
    "sqlite": "sqlite+aiosqlite",
    "sqlite+aiosqlite": "sqlite+aiosqlite",
}
"""Maps each accepted scheme to SQLAlchemy's scheme with the driver."""


def checked(value: str) -> str:
    """Returns the URL with its driver, as SQLAlchemy expects it. An empty value stays empty.

    Raises `ValueError`. The message leaves out everything after the scheme, which may contain a
    password.
    """
    if not value:
        return value
    scheme, mark, rest = value.partition("://")
    driver = SCHEMES.get(scheme.lower())
    if not mark or driver is None:
        of_it = f" ('{scheme}' is not a supported scheme)" if mark else ""
        raise ValueError(
            f"must be postgresql://user:password@host:port/database or sqlite:////a/file{of_it}"
        )
    return f"{driver}://{rest}"


def without_password(value: str) -> str:
    """Returns a URL for display, with user, host and database but without password and options."""
    scheme, mark, rest = value.partition("://")
    user, at, place = rest.partition("?")[0].rpartition("@")
    return f"{scheme}{mark}{user.partition(':')[0]}{at}{place}"
