from fastapi import APIRouter

from stoker.base.errors import CapacityError, NotFoundError, responses
from stoker.platform.web.schemas import Deleted
from stoker.server.erasure import service
from stoker.server.erasure.context import ContextDep
from stoker.tenancy.keys.auth import KeyedRoute, Operator

router = APIRouter(prefix="/v1/accounts", tags=["Accounts"], route_class=KeyedRoute)


@router.delete("/{account_id}", responses=responses(NotFoundError, CapacityError))
async def delete_account(account_id: str, _operator: Operator, context: ContextDep) -> Deleted:
    """Delete an account and erase all of its data (operators).

    Its keys are revoked immediately and its work is stopped. An interrupted deletion continues
    automatically.
    """
    await service.delete(context, account_id)
    return Deleted(id=account_id, object="account.deleted")
