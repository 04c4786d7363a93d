"""Nothing is begun that nobody pays for."""

from typing import Annotated

from stoker.keys.auth import AccountId
from stoker.usage.balances import Credits
from stoker.web.context import part

CreditsDep = Annotated[Credits, part(Credits)]


async def funded(account_id: AccountId, known: CreditsDep) -> None:
    """Raise `InsufficientCreditsError` where nothing may be begun for the account."""
    known.check(account_id)
