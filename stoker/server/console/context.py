from dataclasses import dataclass
from typing import Annotated

from stoker.platform.web.context import Platform, part
from stoker.server.console.attempts import Attempts
from stoker.server.console.built import Pages
from stoker.tenancy.keys.keyring import Keyring
from stoker.tenancy.keys.sessions import Sessions


@dataclass(frozen=True, kw_only=True)
class ConsoleContext(Platform):
    keyring: Keyring
    sessions: Sessions
    attempts: Attempts
    pages: Pages


ContextDep = Annotated[ConsoleContext, part(ConsoleContext)]
