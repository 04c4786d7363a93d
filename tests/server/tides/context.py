from dataclasses import dataclass, field
from typing import Annotated

from stoker.inference.calls import Calls
from stoker.platform.web.context import Platform, part


@dataclass(frozen=True, kw_only=True)
class TideContext(Platform):
    calls: Calls
    steps: list[str] = field(default_factory=list[str])
    """Names of the steps that have run, in order."""


ContextDep = Annotated[TideContext, part(TideContext)]
