from sqlalchemy import select

from stoker.store.db import Session
from stoker.store.tables.accounts import Account
from stoker.web.lists import Page, PageQuery, fetch_page


async def get(session: Session, account_id: str, *, lock: bool = False) -> Account | None:
    statement = select(Account).where(Account.id == account_id)
    return await session.scalar(statement.with_for_update(key_share=True) if lock else statement)


async def page(session: Session, query: PageQuery) -> Page[Account]:
    return await fetch_page(session, select(Account), Account.id, query)
