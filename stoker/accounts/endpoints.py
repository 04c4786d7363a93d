from fastapi import APIRouter, Response

from stoker.accounts import repository, service
from stoker.accounts.schemas import Account, AccountCreate
from stoker.errors import ConflictError, responses
from stoker.keys.auth import KeyedRoute, Operator
from stoker.usage import balances
from stoker.usage.funding import CreditsDep
from stoker.web.context import PlatformDep, ReadSession, WriteSession
from stoker.web.idempotency import Idempotent
from stoker.web.lists import ListResponse, Paging

router = APIRouter(prefix="/v1/accounts", tags=["Accounts"], route_class=KeyedRoute)


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
        account = service.create(session, body.name)
        starting = platform.settings.starting_credits
        await balances.open_account(session, known, account.id, starting, account.created_at)
        return Account.model_validate(account)

    return await idempotent.run(session, created)


@router.get("", responses=responses())
async def list_accounts(
    _operator: Operator, session: ReadSession, paging: Paging
) -> ListResponse[Account]:
    """List all accounts (operators)."""
    page = await repository.page(session, paging)
    return page.response(Account.model_validate)
