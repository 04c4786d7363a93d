from sqlalchemy import select

from stoker.platform.web.lists import Page, PageQuery, fetch_page
from stoker.store.db import Session
from stoker.store.tables.accounts import Account


async def get(session: Session, account_id: str, *, lock: bool = False) -> Account | None:
    """Returns an account. Returns None if it does not exist or is being deleted."""
    statement = select(Account).where(Account.id == account_id, Account.deleting_at.is_(None))
    return await session.scalar(statement.with_for_update(key_share=True) if lock else statement)


async def any_exists(session: Session) -> bool:
    """Returns True if an account exists, even if it is being deleted."""
    return await session.scalar(select(Account.id).limit(1)) is not None


async def page(session: Session, query: PageQuery) -> Page[Account]:
    statement = select(Account).where(Account.deleting_at.is_(None))
    return await fetch_page(session, statement, Account.id, query)
