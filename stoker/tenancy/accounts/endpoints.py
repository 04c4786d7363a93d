from fastapi import APIRouter, Response

from stoker.base.errors import ConflictError, NotFoundError, responses
from stoker.platform.web.context import PlatformDep, ReadSession, WriteSession
from stoker.platform.web.idempotency import Idempotent
from stoker.platform.web.lists import ListResponse, Paging
from stoker.tenancy.accounts import repository, service
from stoker.tenancy.accounts.schemas import Account, AccountCreate, AccountUpdate, Quotas, QuotaUse
from stoker.tenancy.keys.auth import AccountId, KeyedRoute, Operator
from stoker.tenancy.usage.funding import CreditsDep

router = APIRouter(prefix="/v1/accounts", tags=["Accounts"], route_class=KeyedRoute)
quotas = APIRouter(prefix="/v1/quotas", tags=["Accounts"], route_class=KeyedRoute)


@router.post("", status_code=201, response_model=Account, responses=responses(ConflictError))
async def create_account(
    body: AccountCreate,
    _operator: Operator,
    session: WriteSession,
    platform: PlatformDep,
    known: CreditsDep,
    idempotent: Idempotent,
) -> Response:
    """Create an account (operators)."""

    async def created() -> Account:
        starting = platform.settings.starting_credits
        account = await service.create(session, known, body.name, starting)
        return Account.model_validate(account)

    return await idempotent.run(session, created)


@router.get("", responses=responses())
async def list_accounts(
    _operator: Operator, session: ReadSession, paging: Paging
) -> ListResponse[Account]:
    """List all accounts (operators)."""
    page = await repository.page(session, paging)
    return page.response(Account.model_validate)


@router.get("/{account_id}", responses=responses(NotFoundError))
async def get_account(account_id: str, _operator: Operator, session: ReadSession) -> Account:
    """Get an account (operators)."""
    return Account.model_validate(await service.get(session, account_id))


@router.patch("/{account_id}", responses=responses(NotFoundError))
async def update_account(
    account_id: str, body: AccountUpdate, _operator: Operator, session: WriteSession
) -> Account:
    """Rename an account, or set limits that apply only to it (operators)."""
    return Account.model_validate(await service.update(session, account_id, body))


@quotas.get("", responses=responses())
async def get_quotas(account_id: AccountId, session: ReadSession, platform: PlatformDep) -> Quotas:
    """Get the account's limits and their current use."""
    report = await platform.quotas.report(session, account_id)
    uses = {
        name: QuotaUse(used=used, limit=limit or None) for name, (used, limit) in report.items()
    }
    return Quotas(account_id=account_id, quotas=uses)
