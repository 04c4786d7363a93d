"""Errors that one process raises and another one returns to the client."""

from collections.abc import Iterator

import msgspec

from stoker.base.errors import InternalError, StokerError

_Scalar = str | int | float | bool | None
_BASE_FIELDS = frozenset(vars(StokerError()))


class ErrorFields(msgspec.Struct, frozen=True, omit_defaults=True):
    """All fields of an error. Restores it in another process, as an error of the same class."""

    kinds: list[str]
    """Names of the error's class and of its bases up to `StokerError`, most specific first."""
    status: int
    error_type: str
    message: str
    code: str
    param: str | None = None
    retry_after_s: float | None = None
    progress: float | None = None
    is_lasting: bool = False
    more: dict[str, _Scalar] = {}
    """Fields that only this class has."""

    @classmethod
    def of(cls, error: Exception) -> "ErrorFields":
        """Returns the fields of an error. Hides an unexpected error as `InternalError`."""
        if not isinstance(error, StokerError):
            error = InternalError()
        return cls(
            kinds=[_name(kind) for kind in type(error).__mro__ if issubclass(kind, StokerError)],
            status=error.status,
            error_type=error.type,
            message=error.message,
            code=error.code,
            param=error.param,
            retry_after_s=error.retry_after_s,
            progress=error.progress,
            is_lasting=error.is_lasting,
            more={
                name: value
                for name, value in vars(error).items()
                if name not in _BASE_FIELDS and isinstance(value, _Scalar)
            },
        )

    def restored(self) -> StokerError:
        """Returns the error. If this process does not know its class, returns one of the nearest
        known base with the same status and type.
        """
        kind = self._class()
        # The class may have a constructor with other arguments.
        error = kind.__new__(kind)
        StokerError.__init__(
            error,
            self.message,
            code=self.code,
            param=self.param,
            retry_after_s=self.retry_after_s,
            progress=self.progress,
            is_lasting=self.is_lasting,
        )
        vars(error).update(self.more)
        if self.kinds[:1] != [_name(kind)]:
            vars(error).update(status=self.status, type=self.error_type)
        return error

    def _class(self) -> type[StokerError]:
        # Not cached, because a module that defines a class may be imported later.
        known = {_name(kind): kind for kind in _classes(StokerError)}
        return next((known[name] for name in self.kinds if name in known), StokerError)


def _name(kind: type[StokerError]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _classes(base: type[StokerError]) -> Iterator[type[StokerError]]:
    yield base
    for child in base.__subclasses__():
        yield from _classes(child)
