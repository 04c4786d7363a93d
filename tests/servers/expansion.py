"""Finds changes of a migration that break servers of the release before."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, inspect

_INDEX = re.compile(r'CREATE (?:UNIQUE )?INDEX (CONCURRENTLY )?.*? ON "?(\w+)"?', re.DOTALL)
_CHANGED_ROWS = re.compile(r'(?:UPDATE|DELETE FROM) "?(\w+)"?')
_OWN = ("alembic_version", "schema_support")
"""Tables that migrations themselves write."""
_SAFE = ("CASCADE", "SET NULL", "SET DEFAULT")


@dataclass(frozen=True)
class TableShape:
    columns: dict[str, dict[str, Any]]
    rules: frozenset[str]
    """Unique indexes and check constraints."""
    foreign_keys: dict[str, tuple[str, str]]
    """Maps a constraint to the table that it names and its `ON DELETE`."""


Shape = dict[str, TableShape]


def shape(connection: Connection) -> Shape:
    """Returns the tables of a database."""
    inspector = inspect(connection)
    return {
        table: TableShape(
            columns={column["name"]: dict(column) for column in inspector.get_columns(table)},
            rules=frozenset(
                [
                    *(
                        str(index["name"])
                        for index in inspector.get_indexes(table)
                        if index["unique"]
                    ),
                    *(str(rule["name"]) for rule in inspector.get_unique_constraints(table)),
                    *(str(rule["name"]) for rule in inspector.get_check_constraints(table)),
                ]
            ),
            foreign_keys={
                str(key["name"]): (key["referred_table"], key["options"].get("ondelete", ""))
                for key in inspector.get_foreign_keys(table)
            },
        )
        for table in inspector.get_table_names()
    }


def breaking_changes(before: Shape, after: Shape, statements: Sequence[str]) -> list[str]:
    """Returns the changes that an expanding migration must not make.

    Args:
        statements: the statements of the migration.
    """
    return [*_of_tables(before, after), *_of_statements(before, statements)]


def _of_tables(before: Shape, after: Shape) -> Iterator[str]:
    for name, table in after.items():
        for referred, on_delete in (
            key for which, key in table.foreign_keys.items() if which not in _keys(before, name)
        ):
            if referred in before and on_delete not in _SAFE:
                yield f"{name} blocks deletions in {referred}: its foreign key needs ON DELETE"
    for name, old in before.items():
        if name not in after:
            yield f"drops {name}"
            continue
        new = after[name]
        yield from (f"drops {name}.{column}" for column in old.columns.keys() - new.columns.keys())
        yield from (f"adds the rule {rule}" for rule in sorted(new.rules - old.rules))
        for column, facts in new.columns.items():
            if column not in old.columns:
                if not facts["nullable"] and facts["default"] is None:
                    yield f"adds {name}.{column} with NOT NULL and without a default"
                continue
            was = old.columns[column]
            # A longer type is a change, too: PostgreSQL then rejects prepared statements.
            if str(facts["type"]) != str(was["type"]):
                yield f"changes the type of {name}.{column}"
            if facts["nullable"] != was["nullable"]:
                yield f"changes NULL of {name}.{column}"
            if was["default"] is not None and facts["default"] is None:
                yield f"drops the default of {name}.{column}"


def _keys(before: Shape, table: str) -> set[str]:
    return set(before[table].foreign_keys) if table in before else set()


def _of_statements(before: Shape, statements: Sequence[str]) -> Iterator[str]:
    for statement in statements:
        if (index := _INDEX.match(statement)) and index[2] in before and not index[1]:
            yield f"blocks writes to {index[2]}: create its index with CONCURRENTLY"
        if (rows := _CHANGED_ROWS.match(statement)) and rows[1] in before and rows[1] not in _OWN:
            yield f"locks rows of {rows[1]}"
