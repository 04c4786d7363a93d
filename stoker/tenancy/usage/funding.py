"""Nothing is begun that nobody pays for."""

from typing import Annotated

from stoker.platform.web.context import part
from stoker.tenancy.keys.auth import AccountId
from stoker.tenancy.usage.balances import Credits

CreditsDep = Annotated[Credits, part(Credits)]


async def funded(account_id: AccountId, known: CreditsDep) -> None:
    """Raise `InsufficientCreditsError` where nothing may be begun for the account."""
    known.check(account_id)
