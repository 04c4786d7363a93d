"""Lists: `{"object": "list", "data", "first_id", "last_id", "has_more"}`, paged by id."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, TypeVar

import orjson
from fastapi import Query, Response
from pydantic import BaseModel
from sqlalchemy import ColumnElement, Select
from sqlalchemy.orm import InstrumentedAttribute

from stoker.platform.web.dependencies import made
from stoker.store.db import NO_CONTROL, Session

PAGE_BYTES = 2 << 20
"""Approximate maximum bytes of a page of large objects."""

Row = TypeVar("Row")
Item = TypeVar("Item")


class ListResponse(BaseModel, Generic[Item]):
    object: Literal["list"] = "list"
    data: list[Item]
    first_id: str | None = None
    last_id: str | None = None
    has_more: bool = False


@dataclass(frozen=True)
class PageQuery:
    limit: Annotated[int, Query(ge=1, le=100, description="Most objects returned.")] = 20
    after: Annotated[
        str | None,
        Query(
            max_length=64, pattern=NO_CONTROL, description="Start after the object with this id."
        ),
    ] = None
    order: Annotated[Literal["asc", "desc"], Query(description="Oldest or newest first.")] = "desc"


Paging = Annotated[PageQuery, made(PageQuery)]


@dataclass(frozen=True)
class Page(Generic[Row]):
    rows: Sequence[Row]
    has_more: bool

    def response(self, schema: Callable[[Row], Any]) -> ListResponse[Any]:
        data = [schema(row) for row in self.rows]
        return ListResponse(
            data=data,
            first_id=data[0].id if data else None,
            last_id=data[-1].id if data else None,
            has_more=self.has_more,
        )


async def json_page(page: Page[Row], schema: Callable[[Row], Any]) -> Response:
    """Returns a list of possibly large objects as JSON. Other tasks get a turn after each
    object.
    """
    ids: list[str] = []
    objects: list[bytes] = []
    for row in page.rows:
        shown = schema(row)
        ids.append(shown.id)
        objects.append(shown.model_dump_json().encode())
        await asyncio.sleep(0)
    rest = {
        "first_id": ids[0] if ids else None,
        "last_id": ids[-1] if ids else None,
        "has_more": page.has_more,
    }
    parts = (b'{"object":"list","data":[', b",".join(objects), b"],", orjson.dumps(rest)[1:])
    return Response(b"".join(parts), media_type="application/json")


async def fetch_page(
    session: Session,
    statement: Select[Row],
    id_column: InstrumentedAttribute[str],
    query: PageQuery,
) -> Page[Row]:
    """Returns a page of rows. Ids are time-ordered, so paging by id is paging by age."""
    sorted_rows = ordered(statement, id_column, query).limit(query.limit + 1)
    rows = (await session.scalars(sorted_rows)).all()
    return Page(rows[: query.limit], len(rows) > query.limit)


async def fetch_light_page(
    session: Session,
    statement: Select[Row],
    id_column: InstrumentedAttribute[str],
    query: PageQuery,
    *,
    weight: ColumnElement[int],
) -> Page[Row]:
    """Returns a page of possibly large rows. The page ends before it exceeds `PAGE_BYTES`.

    Args:
        weight: size of a row in bytes.
    """
    weights = statement.with_only_columns(id_column, weight)
    sorted_rows = ordered(weights, id_column, query).limit(query.limit + 1)
    id_sizes: Sequence[Any] = (await session.execute(sorted_rows)).all()
    count = fitting([size for _, size in id_sizes[: query.limit]])
    ids = [identifier for identifier, _ in id_sizes[:count]]
    rows = await session.scalars(ordered(statement.where(id_column.in_(ids)), id_column, query))
    return Page(rows.all(), len(id_sizes) > count)


def fitting(sizes: Sequence[int]) -> int:
    """Returns the number of objects with these sizes that fit into one page: at least one."""
    total = 0
    for count, size in enumerate(sizes):
        total += size
        if total > PAGE_BYTES and count:
            return count
    return len(sizes)


def ordered(statement: Any, id_column: InstrumentedAttribute[str], query: PageQuery) -> Any:
    """Returns the statement with its rows ordered, from the start of the page to the last row."""
    if query.order == "desc":
        statement = statement.order_by(id_column.desc())
        return statement.where(id_column < query.after) if query.after else statement
    statement = statement.order_by(id_column)
    return statement.where(id_column > query.after) if query.after else statement
