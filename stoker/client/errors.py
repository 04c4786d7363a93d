"""Errors that end a command, with a message and an exit code."""

from dataclasses import dataclass

# The bytes were changed in transit.
DIGEST_MISMATCH = "digest_mismatch"
ACCOUNT_HEADER = "x-stoker-account"


class CliError(Exception):
    """Error that ends the command. `hint` says how to fix the problem."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def details(self) -> dict[str, str]:
        """Returns details to print below the message, by name."""
        return {}


class WrongUseError(CliError):
    """The arguments or settings of the command are invalid."""

    exit_code = 2


class UnreachableError(CliError):
    """No server responds at the address."""


class BrokenConnectionError(CliError):
    """The connection broke or stalled before the response arrived."""


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


class ApiError(CliError):
    def __init__(self, problem: ApiProblem) -> None:
        message = problem.message.replace(f"in the header {ACCOUNT_HEADER}", "with --account")
        super().__init__(message, hint=_hint(problem))
        self.problem = problem

    @property
    def is_passing(self) -> bool:
        """True if a retry of the same request may succeed."""
        problem = self.problem
        return problem.status == 429 or problem.status >= 500 or problem.code == DIGEST_MISMATCH

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


def _hint(problem: ApiProblem) -> str | None:
    if problem.code == "model_loading":
        return "Retry in a moment, or wait longer for the model with --wait SECONDS."
    if problem.param in (ACCOUNT_HEADER, "account_id"):
        return (
            "Pass it before the command, as in 'stoker --account ID models', or set STOKER_ACCOUNT."
            " List accounts with 'stoker accounts list'."
        )
    return None
