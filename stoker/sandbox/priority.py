"""How much of the cores a process gets beside others, where this one may say so.

Where the kernel groups processes by session ("autogroup"; see sched(7)), the nice value of a
process' session counts, which every user may raise and take back. Elsewhere, as in containers and
services, its own does: to take that back needs CAP_SYS_NICE, or an RLIMIT_NICE of 20.
"""

import contextlib
import os
import resource
import sys
from pathlib import Path

from stoker.sandbox import identity

_SYS_NICE = 23
_NICE_OF_ZERO = 20
"""RLIMIT_NICE counts from 20 downwards."""
_GROUPS = Path("/proc/sys/kernel/sched_autogroup_enabled")


def share_cores() -> None:
    """Have this process take turns with others, as do all that it starts, whatever it inherited.

    In real time a model would keep everyone else from the cores, and a replica, which may not
    choose such a policy, could start no threads.
    """
    if sys.platform == "linux" and os.sched_getscheduler(0) != os.SCHED_OTHER:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def set_nice(pid: int, nice: int) -> bool:
    """Of a process that leads a session: all of its threads, and what it has started.

    Returns False where it is to be tried again.
    """
    if may_set_nice():
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PGRP, pid, nice)
    try:
        Path(f"/proc/{pid}/autogroup").write_text(str(nice))
    except BlockingIOError:
        # The kernel lets a plain user do so ten times a second.
        return False
    except OSError:
        # There are no groups, or the process is gone.
        pass
    return True


def may_set_nice() -> bool:
    """Whether a nice value that is given to a process can be taken back."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NICE)
    is_allowed = soft == resource.RLIM_INFINITY or soft >= _NICE_OF_ZERO
    return is_allowed or bool(identity.capabilities() >> _SYS_NICE & 1)


def has_groups() -> bool:
    """Whether the kernel groups by session, at least what is in no control group of its own."""
    try:
        return _GROUPS.read_text().strip() == "1"
    except OSError:
        return False
