from dataclasses import dataclass
from typing import Annotated

from stoker.inference.calls import Calls
from stoker.platform.web.context import Platform, part
from stoker.workloads.evaluation.checks.judges import Judges


@dataclass(frozen=True, kw_only=True)
class CheckContext(Platform):
    calls: Calls
    judges: Judges


ContextDep = Annotated[CheckContext, part(CheckContext)]
