from sqlalchemy import select

from stoker.store.db import Session
from stoker.store.tables.accounts import Account
from stoker.web.lists import Page, PageQuery, fetch_page


async def page(session: Session, query: PageQuery) -> Page[Account]:
    return await fetch_page(session, select(Account), Account.id, query)
