"""Ledger of transfers between books. The books' balances change in the same transaction."""

from datetime import datetime

from stoker.base.errors import InvalidRequestError
from stoker.base.ids import Prefix, new_id
from stoker.store.db import Session
from stoker.store.tables.usage import Book, Holding, Price, Transfer, TransferKind
from stoker.tenancy.usage import ledger_repository, money

GRANTS = "operator:grants"
MEMORY = "operator:memory"
STORAGE = "operator:storage"
CLOSED = "accounts:closed"
"""Book that holds the total balance of deleted accounts."""

_INCOME = {TransferKind.MEMORY: MEMORY, TransferKind.FLEX: MEMORY, TransferKind.STORAGE: STORAGE}


def book_of(account_id: str) -> str:
    return f"account:{account_id}"


class Ledger:
    """Operations on the ledger while this transaction holds its lock."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._books: dict[str, Book] = {}

    @classmethod
    async def open(cls, session: Session) -> "Ledger":
        """Waits for other writers to the ledger, on any server.

        Metered usage is read and written under the same lock, so that two servers never charge the
        same usage. SQLite has only one writer anyway.
        """
        await ledger_repository.lock_book(session, MEMORY)
        return cls(session)

    async def transfer(
        self,
        *,
        key: str,
        kind: TransferKind,
        source: str,
        target: str,
        microcredits: int,
        account_id: str,
        now: datetime,
        holding_id: str | None = None,
        note: str | None = None,
    ) -> Transfer:
        """Moves an amount above zero. A reused key fails the whole transaction.

        Raises `InvalidRequestError` if a book would exceed its maximum.
        """
        moved = Transfer(
            id=new_id(Prefix.TRANSFER),
            key=key,
            kind=kind.value,
            source=source,
            target=target,
            microcredits=microcredits,
            account_id=account_id,
            holding_id=holding_id,
            note=note,
            created_at=now,
        )
        for name, amount in ((source, -microcredits), (target, microcredits)):
            book = await self.book(name, account_id)
            if abs(book.microcredits + amount) > money.LARGEST:
                raise InvalidRequestError(
                    f"A book of the ledger holds at most {money.in_credits(money.LARGEST)} "
                    "credits.",
                    param="amount_microcredits",
                )
            book.microcredits += amount
        self._session.add(moved)
        return moved

    async def charge(self, holding: Holding, price: Price, now: datetime) -> None:
        """Charges the amount added to a holding since its last charge.

        The rounding remainder is carried to the account's next charge. The total cost is the same
        however usage is split into holdings.
        """
        account = book_of(holding.account_id)
        book = await self.book(account, holding.account_id)
        added = holding.mib_ms - holding.charged_mib_ms
        cost = book.carry + money.parts(holding.kind, added, price)
        microcredits, book.carry = divmod(cost, money.PARTS)
        if microcredits:
            kind = TransferKind(holding.kind)
            await self.transfer(
                key=f"charge:{holding.id}:{holding.charged_mib_ms}",
                kind=kind,
                source=account,
                target=_INCOME[kind],
                microcredits=microcredits,
                account_id=holding.account_id,
                holding_id=holding.id,
                now=now,
            )
        holding.charged_mib_ms = holding.mib_ms
        holding.charged_microcredits += microcredits
        holding.settle()

    async def close(self, account_id: str, now: datetime) -> None:
        """Replaces an account's transfers with anonymous sums, and deletes its book.

        All books still balance. Pending charges are dropped.
        """
        book_name = book_of(account_id)
        sums = await ledger_repository.sums_of_transfers(self._session, account_id)
        await ledger_repository.delete_transfers(self._session, account_id)
        for kind, source, target, microcredits in sums:
            identifier = new_id(Prefix.TRANSFER)
            self._session.add(
                Transfer(
                    id=identifier,
                    key=f"closed:{identifier}",
                    kind=kind,
                    source=CLOSED if source == book_name else source,
                    target=CLOSED if target == book_name else target,
                    microcredits=int(microcredits),
                    account_id=None,
                    created_at=now,
                )
            )
        if book := await self._session.get(Book, book_name):
            closed = await self.book(CLOSED, account_id)
            closed.microcredits += book.microcredits
            await self._session.delete(book)
        await self._session.flush()

    async def book(self, name: str, account_id: str) -> Book:
        """Returns a book, created if it is new. `account_id` matters only for an account's own
        book.
        """
        book = self._books.get(name) or await self._session.get(Book, name)
        if book is None:
            owner = account_id if name == book_of(account_id) else None
            book = Book(name=name, account_id=owner, microcredits=0, carry=0)
            self._session.add(book)
        self._books[name] = book
        return book
