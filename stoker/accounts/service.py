from stoker import db
from stoker.accounts.models import Account
from stoker.db import Session
from stoker.ids import Prefix, new_id


def create(session: Session, name: str) -> Account:
    account = Account(id=new_id(Prefix.ACCOUNT), name=name, created_at=db.now())
    session.add(account)
    return account
