"""Balances, which decide whether an account may start work. Kept in memory, because the warm path
reads no database.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from stoker.base.errors import InsufficientCreditsError, NotFoundError
from stoker.base.ids import Prefix, new_id
from stoker.store import db
from stoker.store.db import Session
from stoker.store.tables.usage import Transfer, TransferKind
from stoker.tenancy.usage import money, repository, schemas
from stoker.tenancy.usage.ledger import GRANTS, Ledger, book_of
from stoker.tenancy.usage.prices import PriceList


@dataclass(frozen=True)
class Balance:
    account_id: str
    microcredits: int
    """Micro-credits left after all usage is paid."""
    pending: int
    """Micro-credits of usage that is not charged yet."""


class CreditCheck:
    """Accounts without credit, as of the last metering tick and later grants."""

    def __init__(self) -> None:
        self._exhausted: frozenset[str] = frozenset()

    def check(self, account_id: str | None) -> None:
        """Raises `InsufficientCreditsError` if the account may not start work."""
        if account_id in self._exhausted:
            raise InsufficientCreditsError

    def exhausted(self) -> frozenset[str]:
        """Returns the accounts without credit. Their idle replicas must end."""
        return self._exhausted

    def forget(self, account_id: str) -> None:
        """Forgets a deleted account."""
        self._exhausted -= {account_id}

    def learn(self, balances: Iterable[Balance]) -> None:
        """Updates the known balances of some accounts."""
        known = {balance.account_id: balance.microcredits > 0 for balance in balances}
        without = {account for account, is_funded in known.items() if not is_funded}
        self._exhausted = (self._exhausted - known.keys()) | without


async def left_of(session: Session, account_id: str | None = None) -> list[Balance]:
    """Returns the balances of one account or of all, with uncharged usage deducted."""
    prices = await PriceList.read(session)
    ledger: dict[str, int] = {}
    parts: dict[str, int] = {}
    for due in await repository.due(session, account_id):
        ledger[due.account_id] = due.ledger
        cost = parts.get(due.account_id, due.carry)
        if due.kind is not None and due.price_version is not None:
            cost += money.parts(due.kind, due.mib_ms, prices.version(due.price_version))
        parts[due.account_id] = cost
    return [
        Balance(account, amount - parts[account] // money.PARTS, parts[account] // money.PARTS)
        for account, amount in ledger.items()
    ]


async def left(session: Session, account_id: str) -> Balance:
    account_balances = await left_of(session, account_id)
    return account_balances[0] if account_balances else Balance(account_id, 0, 0)


async def open_account(
    session: Session, known: CreditCheck, account_id: str, starting_credits: int, now: datetime
) -> None:
    """Opens the book of an account that has none, with its starting credits."""
    ledger = await Ledger.open(session)
    await ledger.book(book_of(account_id), account_id)
    if starting_credits:
        await ledger.transfer(
            key=f"opening:{account_id}",
            kind=TransferKind.OPENING,
            source=GRANTS,
            target=book_of(account_id),
            microcredits=starting_credits * money.MICRO,
            account_id=account_id,
            now=now,
        )
    await _learn_after_commit(session, known, account_id)


async def grant(
    session: Session, known: CreditCheck, account_id: str, request: schemas.GrantCreate
) -> Transfer:
    """Grants credit to an account, or reverses part of an earlier grant as a correction."""
    if not await repository.account_exists(session, account_id):
        raise NotFoundError("Account not found", code="account_not_found")
    ledger = await Ledger.open(session)
    books = (GRANTS, book_of(account_id))
    source, target = books[::-1] if request.correction else books
    moved = await ledger.transfer(
        key=f"grant:{new_id(Prefix.TRANSFER)}",
        kind=TransferKind.CORRECTION if request.correction else TransferKind.GRANT,
        source=source,
        target=target,
        microcredits=abs(request.amount_microcredits),
        account_id=account_id,
        note=request.note,
        now=db.now(),
    )
    await _learn_after_commit(session, known, account_id)
    return moved


async def _learn_after_commit(session: Session, known: CreditCheck, account_id: str) -> None:
    balance = await left(session, account_id)
    session.after_commit(lambda: known.learn([balance]))
