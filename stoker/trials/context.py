from dataclasses import dataclass
from typing import Annotated, Any

from stoker.asking.comparer import Comparer
from stoker.inference.call import Calls
from stoker.jobs.runner import Runner
from stoker.web.context import Platform, part


@dataclass(frozen=True, kw_only=True)
class TrialContext(Platform):
    calls: Calls
    comparer: Comparer
    jobs: Runner[Any, Any]


ContextDep = Annotated[TrialContext, part(TrialContext)]
