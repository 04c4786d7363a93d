"""Lists: `{"object": "list", "data", "first_id", "last_id", "has_more"}`, paged by id."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, TypeVar

from fastapi import Query
from pydantic import BaseModel
from sqlalchemy import Select
from sqlalchemy.orm import InstrumentedAttribute

from stoker.store.db import NO_CONTROL, Session
from stoker.web.dependencies import made

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


async def fetch_page(
    session: Session,
    statement: Select[Row],
    id_column: InstrumentedAttribute[str],
    query: PageQuery,
) -> Page[Row]:
    """Ids are time-ordered, so paging by id is paging by age."""
    if query.order == "desc":
        statement = statement.order_by(id_column.desc())
        if query.after:
            statement = statement.where(id_column < query.after)
    else:
        statement = statement.order_by(id_column)
        if query.after:
            statement = statement.where(id_column > query.after)
    rows = (await session.scalars(statement.limit(query.limit + 1))).all()
    return Page(rows[: query.limit], len(rows) > query.limit)
