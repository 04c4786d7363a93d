from dataclasses import dataclass
from typing import Annotated

from stoker.console.attempts import Attempts
from stoker.console.built import Pages
from stoker.keys.keyring import Keyring
from stoker.keys.sessions import Sessions
from stoker.web.context import Platform, part


@dataclass(frozen=True, kw_only=True)
class ConsoleContext(Platform):
    keyring: Keyring
    sessions: Sessions
    attempts: Attempts
    pages: Pages


ContextDep = Annotated[ConsoleContext, part(ConsoleContext)]
