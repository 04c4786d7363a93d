from stoker.base.errors import NotFoundError
from stoker.base.ids import Prefix, new_id
from stoker.store import db
from stoker.store.db import Session
from stoker.store.tables.accounts import Account
from stoker.tenancy.accounts import repository
from stoker.tenancy.accounts.schemas import AccountUpdate
from stoker.tenancy.usage import balances
from stoker.tenancy.usage.balances import CreditCheck


async def create(session: Session, known: CreditCheck, name: str, starting_credits: int) -> Account:
    """Creates an account with its starting credits."""
    account = Account(id=new_id(Prefix.ACCOUNT), name=name, quotas={}, created_at=db.now())
    session.add(account)
    await balances.open_account(session, known, account.id, starting_credits, account.created_at)
    return account


async def get(session: Session, account_id: str, *, lock: bool = False) -> Account:
    account = await repository.get(session, account_id, lock=lock)
    if account is None:
        raise NotFoundError("Account not found", code="account_not_found")
    return account


async def update(session: Session, account_id: str, request: AccountUpdate) -> Account:
    account = await get(session, account_id, lock=True)
    if request.name is not None:
        account.name = request.name
    changed = account.quotas | request.quotas
    account.quotas = {name: limit for name, limit in changed.items() if limit is not None}
    return account
