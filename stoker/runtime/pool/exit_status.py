"""Interprets the exit of a process by its exit code, or minus the number of the signal that ended
it.
"""

import os
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
"""Signals that a process causes itself. Other signals are sent by another process."""


def is_crash(status: int) -> bool:
    """Returns True if the process caused its own end."""
    return (status > 0 and status != os.EX_OSERR) or -status in _CRASHES


def how_it_ended(status: int) -> str:
    """Describes the exit in words."""
    if status == os.EX_OSERR:
        # Reported by the engine host, which could not fork.
        return "no process could be started for lack of memory or processes"
    if status >= 0:
        return f"exit code {status}"
    try:
        return f"signal {-status} ({signal.Signals(-status).name})"
    except ValueError:
        return f"signal {-status}"
