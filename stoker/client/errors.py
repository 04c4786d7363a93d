"""Errors of the client. `hint` says how to fix the problem."""

from dataclasses import dataclass

# The bytes were changed in transit.
DIGEST_MISMATCH = "digest_mismatch"
MODEL_LOADING = "model_loading"
ACCOUNT_HEADER = "x-stoker-account"


class StokerError(Exception):
    """Base class of all errors of this client."""

    exit_code = 1
    """Exit code of a command that this error ends."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}" if self.hint else self.message

    def details(self) -> dict[str, str]:
        """Returns details to print below the message, by name."""
        return {}


class WrongUseError(StokerError):
    """Arguments or settings are invalid."""

    exit_code = 2


class UnreachableError(StokerError):
    """No server responds at the address."""

    def __init__(self, message: str, *, base_url: str = "", hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.base_url = base_url


class BrokenConnectionError(StokerError):
    """The connection broke or stalled before the response arrived."""


class UnexpectedResponseError(StokerError):
    """The response does not have the expected fields."""


class WaitTimeoutError(StokerError, TimeoutError):
    """The expected status was not reached in time."""


class FailedError(StokerError):
    """The server ended the work with an error, for example a load, a video or an inspection."""


class Stopped(Exception):  # noqa: N818 - not an error: the work is stopping
    """Raised if another thread stopped the work."""


@dataclass(frozen=True)
class ApiProblem:
    """An error response of the server."""

    status: int
    code: str
    message: str
    param: str | None = None
    request_id: str | None = None
    retry_after_s: float | None = None
    progress: float | None = None
    is_lasting: bool = False
    """True if the server says that a retry cannot succeed."""


class ApiError(StokerError):
    """The server answered with an error."""

    def __init__(self, problem: ApiProblem) -> None:
        super().__init__(problem.message)
        self.problem = problem

    def __str__(self) -> str:
        named = ", ".join(f"{name} {value}" for name, value in self.details().items())
        return f"{super().__str__()} ({named})"

    @property
    def status(self) -> int:
        return self.problem.status

    @property
    def code(self) -> str:
        """Stable code of the error: docs/errors.md lists all codes."""
        return self.problem.code

    @property
    def is_passing(self) -> bool:
        """True if a retry of the same request may succeed."""
        problem = self.problem
        if problem.is_lasting:
            return False
        return problem.status == 429 or problem.status >= 500 or problem.code == DIGEST_MISMATCH

    @property
    def is_unprocessed(self) -> bool:
        """True if the server did not execute the request and a later retry may succeed."""
        problem = self.problem
        if problem.is_lasting:
            return False
        return problem.status == 429 or (
            problem.status == 503 and problem.retry_after_s is not None
        )

    def details(self) -> dict[str, str]:
        problem = self.problem
        named = {
            "status": str(problem.status),
            "code": problem.code,
            "param": problem.param,
            "request id": problem.request_id,
            "loaded": None if problem.progress is None else f"{problem.progress:.0%}",
        }
        return {name: value for name, value in named.items() if value}
