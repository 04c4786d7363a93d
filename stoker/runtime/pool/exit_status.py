"""How processes end, in words, and what that tells."""

import signal

_CRASHES = frozenset(
    {
        signal.SIGABRT,
        signal.SIGBUS,
        signal.SIGFPE,
        signal.SIGILL,
        signal.SIGSEGV,
        signal.SIGSYS,
        signal.SIGTRAP,
    }
)
"""Signals that a process brings on itself; others come from whoever wants it to end."""


def is_crash(status: int) -> bool:
    """Whether an exit code, or minus a signal's number, is of the process' own doing."""
    return status > 0 or -status in _CRASHES


def how_it_ended(status: int) -> str:
    if status >= 0:
        return f"exit code {status}"
    try:
        return f"signal {-status} ({signal.Signals(-status).name})"
    except ValueError:
        return f"signal {-status}"
