from stoker.ids import Prefix, new_id
from stoker.store import db
from stoker.store.db import Session
from stoker.store.tables.accounts import Account


def create(session: Session, name: str) -> Account:
    account = Account(id=new_id(Prefix.ACCOUNT), name=name, created_at=db.now())
    session.add(account)
    return account
