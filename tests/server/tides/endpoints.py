from fastapi import APIRouter

from stoker.tenancy.keys.auth import KeyedRoute
from tests.server.tides.context import ContextDep

router = APIRouter(prefix="/v1/tides", tags=["Tides"], route_class=KeyedRoute)


@router.get("")
async def list_steps(context: ContextDep) -> list[str]:
    return context.steps
