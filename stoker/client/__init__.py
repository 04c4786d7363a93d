"""Client of Stoker's API. The package `stoker_client` consists of these files.

Names are imported at their first use, because the command line starts faster without them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import models as models
    from . import params as params
    from . import results as results
    from .aio.stoker import AsyncStoker as AsyncStoker
    from .errors import ApiError as ApiError
    from .errors import BrokenConnectionError as BrokenConnectionError
    from .errors import FailedError as FailedError
    from .errors import StokerError as StokerError
    from .errors import UnexpectedResponseError as UnexpectedResponseError
    from .errors import UnreachableError as UnreachableError
    from .errors import WaitTimeoutError as WaitTimeoutError
    from .errors import WrongUseError as WrongUseError
    from .listening import PushState as PushState
    from .sync.stoker import Stoker as Stoker

_MODULES = {"models", "params", "results"}
_NAMES = {
    "Stoker": "sync.stoker",
    "AsyncStoker": "aio.stoker",
    "PushState": "listening",
    **dict.fromkeys(
        (
            "ApiError",
            "BrokenConnectionError",
            "FailedError",
            "StokerError",
            "UnexpectedResponseError",
            "UnreachableError",
            "WaitTimeoutError",
            "WrongUseError",
        ),
        "errors",
    ),
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f".{name}", __name__)
    if module := _NAMES.get(name):
        return getattr(import_module(f".{module}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, *_NAMES})
