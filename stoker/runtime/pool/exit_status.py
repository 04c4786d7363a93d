"""How a process has ended, by its exit code, or minus the number of the signal that ended it."""

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
    """Whether the end was of the process' own doing, not somebody else's."""
    return status > 0 or -status in _CRASHES


def how_it_ended(status: int) -> str:
    """In words."""
    if status >= 0:
        return f"exit code {status}"
    try:
        return f"signal {-status} ({signal.Signals(-status).name})"
    except ValueError:
        return f"signal {-status}"
