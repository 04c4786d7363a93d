"""Costs of a run's steps."""

from stoker.store.tables.agents import Run
from stoker.store.tables.usage import Kind, Price
from stoker.tenancy.usage import money


def charge(run: Run, mib_ms: int, price: Price) -> None:
    """Adds memory held. A step may cost less than a micro-credit: the rest is carried over."""
    cost = run.carry + money.parts(Kind.MEMORY, mib_ms, price)
    whole, run.carry = divmod(cost, money.PARTS)
    run.microcredits += whole
