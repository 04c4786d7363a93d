from typing import Annotated, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import Field

from stoker.base.errors import ConflictError, NotFoundError, responses
from stoker.platform.web.context import ReadSession, WriteSession
from stoker.platform.web.idempotency import Idempotent
from stoker.platform.web.lists import ListResponse, Paging
from stoker.store import db
from stoker.store.db import NO_CONTROL
from stoker.tenancy.keys.auth import AccountId, KeyedRoute, Manager, Operator
from stoker.tenancy.usage import balances, money, prices, reports, repository, schemas
from stoker.tenancy.usage.funding import CreditsDep
from stoker.tenancy.usage.grouping import GROUPS, MOST_TEXT, PATTERN, Grouping
from stoker.tenancy.usage.schemas import (
    Credits,
    GrantCreate,
    Price,
    PriceCreate,
    Transfer,
    UsageReport,
)

CSV = "text/csv"

router = APIRouter(prefix="/v1", tags=["Usage and credits"], route_class=KeyedRoute)

Moment = Annotated[
    str | None,
    Query(max_length=40, pattern=NO_CONTROL, description="ISO 8601; UTC if it has no time zone."),
]


@router.get(
    "/usage", response_model=UsageReport, responses={**responses(), 200: {"content": {CSV: {}}}}
)
async def get_usage(
    request: Request,
    account_id: AccountId,
    session: ReadSession,
    *,
    start: Moment = None,
    end: Moment = None,
    group_by: Annotated[
        str,
        Query(
            description=f"Groups to sum by: one of {', '.join(GROUPS)}, or several separated by "
            "commas, as in `day,deployment`. Rows are sorted by them.",
            json_schema_extra={"pattern": PATTERN, "maxLength": MOST_TEXT},
        ),
    ] = "deployment",
    deployment_id: Annotated[
        list[Annotated[str, Field(max_length=64, pattern=NO_CONTROL)]] | None,
        Query(
            max_length=20, description="Only these deployments. Repeat the parameter for each one."
        ),
    ] = None,
    limit: Annotated[
        int, Query(ge=1, le=reports.MOST_ROWS, description="Most rows returned.")
    ] = reports.MOST_ROWS,
    page: Annotated[
        str | None,
        Query(
            max_length=512,
            pattern=NO_CONTROL,
            description="`next_page` of the previous page; for CSV, the `Link` header has the URL.",
        ),
    ] = None,
    form: Annotated[
        Literal["json", "csv"] | None,
        Query(alias="format", description="Default: by `Accept`."),
    ] = None,
    accept: Annotated[str, Header(max_length=512)] = "",
) -> UsageReport | Response:
    """Get the account's usage, summed by deployment, version, key, tier, day and hour (UTC), as
    JSON or CSV.
    """
    grouping = Grouping.of(group_by)
    usage_span = reports.span(account_id, start, end, grouping, frozenset(deployment_id or ()))
    report = await reports.usage(session, usage_span, grouping, page, limit)
    if form == "csv" or (form is None and accept.startswith(CSV)):
        headers = {"content-disposition": 'attachment; filename="usage.csv"'}
        if report.next_page:
            following = request.query_params.multi_items()
            query = [parameter for parameter in following if parameter[0] != "page"] + [
                ("page", report.next_page)
            ]
            # Relative to the requested address, because a proxy may have added a path prefix.
            headers["link"] = f'<?{urlencode(query)}>; rel="next"'
        return Response(reports.as_csv(report), media_type=CSV, headers=headers)
    return report


@router.get("/usage/events", responses=responses())
async def list_usage_events(
    account_id: AccountId,
    session: ReadSession,
    paging: Paging,
    *,
    start: Moment = None,
    end: Moment = None,
    deployment_id: Annotated[
        str | None,
        Query(max_length=64, pattern=NO_CONTROL, description="Only events of this deployment."),
    ] = None,
    kind: Annotated[
        schemas.EventType | None, Query(alias="type", description="Only events of this type.")
    ] = None,
) -> ListResponse[schemas.UsageEvent]:
    """List the events behind the sums. Each covers an hour of a worker, an artifact or a
    deployment.
    """
    of = () if deployment_id is None else (deployment_id,)
    usage_span = reports.span(account_id, start, end, deployment_ids=of)
    return await reports.events(session, usage_span, kind, paging)


@router.get("/credits", responses=responses())
async def get_credits(account_id: AccountId, session: ReadSession) -> Credits:
    """Get the account's balance and the current prices."""
    balance = await balances.left(session, account_id)
    known = await prices.PriceList.read(session)
    return Credits(
        account_id=account_id,
        balance_microcredits=balance.microcredits,
        balance=money.in_credits(balance.microcredits),
        pending_microcredits=balance.pending,
        price=Price.of(known.at(prices.hour_of(db.now()))),
    )


@router.get("/credits/transfers", responses=responses())
async def list_credit_transfers(
    account_id: AccountId, session: ReadSession, paging: Paging
) -> ListResponse[Transfer]:
    """List the account's grants and charges."""
    page = await repository.transfer_page(session, account_id, paging)
    return page.response(Transfer.of)


@router.post(
    "/accounts/{account_id}/credits",
    status_code=201,
    response_model=Transfer,
    responses=responses(NotFoundError, ConflictError),
)
async def grant_credits(
    account_id: str,
    body: GrantCreate,
    _operator: Operator,
    session: WriteSession,
    known: CreditsDep,
    idempotent: Idempotent,
) -> Response:
    """Grant credit to an account (operators)."""

    async def created() -> Transfer:
        return Transfer.of(await balances.grant(session, known, account_id, body))

    return await idempotent.run(session, created)


@router.get("/prices", responses=responses())
async def list_prices(
    _manager: Manager, session: ReadSession, paging: Paging
) -> ListResponse[Price]:
    """List the versions of the price list."""
    page = await repository.price_page(session, paging)
    return page.response(Price.of)


@router.post("/prices", status_code=201, response_model=Price, responses=responses(ConflictError))
async def create_price(
    body: PriceCreate, _operator: Operator, session: WriteSession, idempotent: Idempotent
) -> Response:
    """Set prices from a full hour on (operators). Earlier usage keeps its price."""

    async def created() -> Price:
        return Price.of(await prices.post(session, body))

    return await idempotent.run(session, created)
