from dataclasses import dataclass
from typing import Annotated, Any

from stoker.inference.calls import Calls
from stoker.platform.jobs.runner import JobRunner
from stoker.platform.web.context import Platform, part
from stoker.workloads.evaluation.replay.comparer import Comparer


@dataclass(frozen=True, kw_only=True)
class TrialContext(Platform):
    calls: Calls
    comparer: Comparer
    jobs: JobRunner[Any, Any]


ContextDep = Annotated[TrialContext, part(TrialContext)]
