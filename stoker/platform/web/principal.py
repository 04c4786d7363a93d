"""Who is calling, as a value: whoever makes it from a key stands above, whoever reads it below."""

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
    """`requests` and `tokens` that it may take a minute; what is not here has no limit."""


def caller_of(request: Request) -> Principal | None:
    """Whoever was found to send a request; None before its key was checked."""
    return getattr(request.state, "caller", None)


def know_caller(request: Request, caller: Principal) -> None:
    """Note who has sent a request: its task is theirs from now on."""
    request.state.caller = caller
    work_for(caller)


def work_for(caller: Principal) -> None:
    """Have the work of this task count as its account's, where accounts take turns."""
    CURRENT_CALLER.set(Party(caller.account_id or "", caller.public_id))
