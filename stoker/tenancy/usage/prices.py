"""Versions of the price list, each effective from a full hour on."""

from collections.abc import Sequence
from datetime import datetime

from stoker.base.errors import InvalidRequestError
from stoker.base.ids import Prefix, new_id
from stoker.store import db
from stoker.store.db import Session
from stoker.store.tables.usage import Price
from stoker.tenancy.usage import repository, schemas
from stoker.tenancy.usage.ledger import Ledger


def hour_of(moment: datetime) -> int:
    """Returns the whole hours since 1970 in UTC."""
    return int(moment.timestamp()) // 3600


class PriceList:
    def __init__(self, versions: Sequence[Price]) -> None:
        self._versions = {price.version: price for price in versions}

    @classmethod
    async def read(cls, session: Session) -> "PriceList":
        return cls(await repository.prices(session))

    @property
    def first(self) -> Price:
        return self._versions[min(self._versions)]

    @property
    def began_ms(self) -> int:
        """Creation time of the first prices in milliseconds since 1970. Nothing is metered before
        it.
        """
        return int(self.first.created_at.timestamp() * 1000)

    def version(self, number: int) -> Price:
        return self._versions[number]

    def at(self, hour: int) -> Price:
        """Returns the price in force during an hour: the version with the latest start, and the
        newest of several.
        """
        begun = [price for price in self._versions.values() if price.hour <= hour]
        return max(begun, key=lambda price: (price.hour, price.version), default=self.first)


async def post(session: Session, request: schemas.PriceCreate) -> Price:
    """Adds a version. Raises `InvalidRequestError` if it would change the price of past usage."""
    await Ledger.open(session)
    now = db.now()
    earliest = hour_of(now) + 1
    hour = earliest
    if begin := request.effective_from:
        hour = hour_of(begin)
        if hour < earliest or begin.timestamp() != hour * 3600:
            raise InvalidRequestError(
                "'effective_from' must be a full hour, and the next one at the earliest.",
                param="effective_from",
            )
    known = await repository.prices(session)
    memory, flex = request.memory_microcredits_per_gib_hour, request.flex_microcredits_per_gib_hour
    price = Price(
        id=new_id(Prefix.PRICE),
        version=known[-1].version + 1,
        memory=memory,
        flex=memory // 2 if flex is None else flex,
        storage=request.storage_microcredits_per_gib_month,
        hour=hour,
        created_at=now,
    )
    session.add(price)
    return price
