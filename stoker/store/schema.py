"""Schema of the database: migrates it, and decides whether this release may use it.

A migration expands the schema, and a later release contracts it. So servers of a release and of the
next one can use one database. Each migration script since 0026 declares `COMPATIBLE_FROM`: the
oldest revision whose release works with the script's result. None means that every release that
worked before still does. The table `schema_support` records the result for releases that do not
know the newest scripts.
"""

import logging
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import Script, ScriptDirectory
from sqlalchemy import Connection, inspect, text

import stoker

log = logging.getLogger(__name__)

MIGRATIONS = Path(__file__).parent / "migrations"
GONE_AFTER_S = 15.0
"""Seconds without a heartbeat after which a server or node counts as lost."""
_SUPPORT = "SELECT oldest_revision, release FROM schema_support"
"""Plain SQL of columns that all later releases keep."""


class SchemaError(OSError):
    """Raised if this release cannot use the database. The message says what to do."""


class SchemaInUseError(SchemaError):
    """Raised if a migration would break servers or nodes of older releases that still run."""


@dataclass(frozen=True)
class SchemaSupport:
    """Releases that may use a schema."""

    oldest_revision: str = ""
    """Oldest revision whose release may use it. Empty if the schema does not record it."""
    release: str = ""
    """Release that migrated it."""


@dataclass(frozen=True)
class SchemaMember:
    """A running server or node, and the newest revision that its release knows."""

    kind: str
    id: str
    host: str
    release: str
    revision: str

    def __str__(self) -> str:
        release = f"release {self.release}" if self.release else "an unknown release"
        return f"{self.kind} {self.host} ({self.id}, {release})"


def revisions() -> set[str]:
    """Returns the revisions of the schema that this release knows."""
    return {script.revision for script in _scripts().walk_revisions()}


def head() -> str:
    """Returns the newest revision that this release knows."""
    return _scripts().get_current_head() or ""


def current(connection: Connection) -> str:
    """Returns the revision of a database. Empty if it has no schema yet."""
    if not inspect(connection).has_table("alembic_version"):
        return ""
    return connection.scalar(text("SELECT version_num FROM alembic_version")) or ""


def support(connection: Connection) -> SchemaSupport:
    """Returns the releases that may use the database's schema."""
    if not inspect(connection).has_table("schema_support"):
        return SchemaSupport()
    row = connection.execute(text(_SUPPORT)).one_or_none()
    return SchemaSupport(*row) if row else SchemaSupport()


def compatible_from(revision: str) -> str:
    """Returns the oldest revision whose release works after a migration from `revision`. Empty if
    every release that works now still does.
    """
    pending = (
        script
        for script in _scripts().iterate_revisions("head", revision or "base")
        if script.revision != revision
    )
    return next((oldest for script in pending if (oldest := _declared(script))), "")


def upgrade(connection: Connection) -> None:
    """Migrates the schema to the newest revision that this release knows.

    Raises `SchemaError` if a newer release has migrated it and this release cannot use the result,
    and `SchemaInUseError` if the migration would break a running server.
    """
    revision, newest = current(connection), head()
    if revision == newest:
        return
    if revision and revision not in revisions():
        _check_newer(connection, revision, newest)
        return
    if revision and (oldest := compatible_from(revision)):
        _check_members(connection, oldest)
    # Alembic begins and commits a transaction for each script.
    connection.commit()
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes.update(connection=connection, on_version_apply=_record)
    command.upgrade(config, "head")


def _check_newer(connection: Connection, revision: str, newest: str) -> None:
    supported = support(connection)
    if supported.oldest_revision not in revisions():
        raise SchemaError(too_new(revision, supported))
    log.warning(
        "a newer release has migrated the database: this release continues to use it",
        extra={"schema": revision, "known": newest, "migrated_by": supported.release},
    )


def too_new(revision: str, supported: SchemaSupport) -> str:
    """Returns why this release cannot use a schema, and what to do."""
    by = f" by release {supported.release}" if supported.release else " by a newer release"
    wanted = f"release {supported.release} or a newer one" if supported.release else "that release"
    return (
        f"The database was migrated to schema {revision}{by}. Release {stoker.__version__} cannot "
        f"use it. Install {wanted}, or restore a backup from before the upgrade."
    )


def _check_members(connection: Connection, oldest: str) -> None:
    known = _since(oldest)
    older = [member for member in _members(connection) if member.revision not in known]
    if older:
        names = ", ".join(map(str, older))
        raise SchemaInUseError(
            f"Release {stoker.__version__} migrates the database in a way that these running "
            f"processes do not support: {names}. Stop them, or upgrade them first to a release "
            f"with schema {oldest} or newer. Then start this one again."
        )


def _since(oldest: str) -> Collection[str]:
    """Returns a revision and all later ones."""
    return {script.revision for script in _scripts().iterate_revisions("head", oldest)} | {oldest}


def _members(connection: Connection) -> list[SchemaMember]:
    """Returns the servers and nodes with a recent heartbeat."""
    if connection.dialect.name == "sqlite":
        # The lock of the data folder permits one server.
        return []
    members: list[SchemaMember] = []
    inspector = inspect(connection)
    for kind, table, host in (("server", "servers", "host"), ("node", "nodes", "name")):
        if not inspector.has_table(table):
            continue
        columns = {column["name"] for column in inspector.get_columns(table)}
        # Older schemas lack some of these columns.
        shown = [
            name if name in columns else f"'' AS {name}"
            for name in ("id", host, "version", "schema_revision")
        ]
        rows = connection.execute(
            text(
                f"SELECT {', '.join(shown)} FROM {table} "  # noqa: S608 - constants
                f"WHERE seen_at > clock_timestamp() - interval '{GONE_AFTER_S} seconds' ORDER BY id"
            )
        )
        members += [SchemaMember(kind, *row) for row in rows]
    return members


def _record(*, ctx: MigrationContext, step: Any, **_: Any) -> None:
    """Records the releases that may use the result of a script, in the script's transaction."""
    script = step.up_revision
    if ctx.connection is None or not hasattr(script.module, "COMPATIBLE_FROM"):
        return
    values = {"release": stoker.__version__}
    ctx.connection.execute(text("UPDATE schema_support SET release = :release"), values)
    if oldest := _declared(script):
        values["oldest"] = oldest
        ctx.connection.execute(text("UPDATE schema_support SET oldest_revision = :oldest"), values)


def _declared(script: Script) -> str:
    """Returns what a script declares. Empty for None and for scripts before the rule."""
    return getattr(script.module, "COMPATIBLE_FROM", None) or ""


def _scripts() -> ScriptDirectory:
    return ScriptDirectory(str(MIGRATIONS))
