"""The caller as a value. Higher layers create it from a key, and lower layers read it."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from fastapi import Request

from stoker.base.fairness import CURRENT_CALLER, Party


class Scope(StrEnum):
    DEPLOYMENT = "deployment"
    ACCOUNT = "account"
    OPERATOR = "operator"


@dataclass(frozen=True)
class Principal:
    """The caller as its key describes it. `account_id` is None for operators."""

    key_id: str
    public_id: str
    scope: Scope
    account_id: str | None
    deployment_ids: frozenset[str]
    limits: Mapping[str, int] = field(default_factory=dict[str, int])
    """Maximum `requests` and `tokens` per minute. A missing entry means no limit."""
    may_prioritize: bool = False
    """True if its calls may use the service tier `priority`."""


def caller_of(request: Request) -> Principal | None:
    """Returns the caller of a request. None before its key was checked."""
    return getattr(request.state, "caller", None)


def know_caller(request: Request, caller: Principal) -> None:
    """Records the caller of a request."""
    request.state.caller = caller


def work_for(caller: Principal) -> None:
    """Assigns the current task's work to the caller's account, for the fair share among
    accounts.
    """
    CURRENT_CALLER.set(_party(caller.account_id or "", caller.public_id))


@functools.lru_cache(maxsize=1024)
def _party(account_id: str, public_id: str) -> Party:
    return Party(account_id, public_id)
