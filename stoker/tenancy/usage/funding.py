"""Refuses to start work for accounts without credit."""

from typing import Annotated

from stoker.platform.web.context import part
from stoker.tenancy.keys.auth import AccountId, Within
from stoker.tenancy.usage.balances import CreditCheck

CreditsDep = Annotated[CreditCheck, part(CreditCheck)]


async def funded(account_id: AccountId, known: CreditsDep) -> None:
    """Raises `InsufficientCreditsError` if the account may not start work."""
    known.check(account_id)


async def funded_caller(within: Within, known: CreditsDep) -> None:
    """Raises as `funded`. Also accepts keys of deployments."""
    known.check(within.account_id)
