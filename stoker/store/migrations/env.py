"""Alembic environment: runs on the connection that `Database.migrate` passes."""

from typing import Literal

from alembic import context

from stoker.store.db import Base, UtcDateTime
from stoker.store.tables.metadata import TABLES

if not TABLES:
    raise RuntimeError("no tables are registered")


def _render_item(kind: str, item: object, _autogen: object) -> str | Literal[False]:
    """Renders the project's column type as migrations import it."""
    return "UtcDateTime()" if kind == "type" and isinstance(item, UtcDateTime) else False


context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    render_as_batch=True,
    compare_type=True,
    render_item=_render_item,
    # Locks of tables then last as long as one script.
    transaction_per_migration=True,
    on_version_apply=context.config.attributes.get("on_version_apply"),
)
with context.begin_transaction():
    context.run_migrations()
