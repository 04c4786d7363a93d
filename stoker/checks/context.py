from dataclasses import dataclass
from typing import Annotated

from stoker.checks.judges import Judges
from stoker.inference.call import Calls
from stoker.web.context import Platform, part


@dataclass(frozen=True, kw_only=True)
class CheckContext(Platform):
    calls: Calls
    judges: Judges


ContextDep = Annotated[CheckContext, part(CheckContext)]
