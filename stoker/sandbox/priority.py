"""Processor priority of a process, if this process may set it.

If the kernel groups processes by session ("autogroup"; see sched(7)), the nice value of a process'
session counts. Every user may raise and lower it. Otherwise, as in containers and services, the
nice value of the process counts. Lowering that needs CAP_SYS_NICE or an RLIMIT_NICE of 20.
"""

import contextlib
import os
import resource
import sys
from pathlib import Path

from stoker.sandbox import identity

_SYS_NICE = 23
_NICE_OF_ZERO = 20
"""RLIMIT_NICE that allows a nice value of zero. It counts down from 20."""
_GROUPS = Path("/proc/sys/kernel/sched_autogroup_enabled")


def share_cores() -> None:
    """Sets the ordinary scheduling policy for this process and its future children, independent of
    the inherited policy.

    Under a real-time policy a model would block all other processes. A replica, which may not
    choose such a policy, could start no threads.
    """
    if sys.platform == "linux" and os.sched_getscheduler(0) != os.SCHED_OTHER:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def set_nice(pid: int, nice: int) -> bool:
    """Sets the nice value of a session leader with all of its threads and child processes.

    Returns False if the call must be repeated later.
    """
    if may_set_nice():
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PGRP, pid, nice)
    try:
        Path(f"/proc/{pid}/autogroup").write_text(str(nice))
    except BlockingIOError:
        # The kernel allows an ordinary user ten changes per second.
        return False
    except OSError:
        # The kernel has no autogroups, or the process has ended.
        pass
    return True


def may_set_nice() -> bool:
    """Returns True if this process may lower a nice value again."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NICE)
    is_allowed = soft == resource.RLIM_INFINITY or soft >= _NICE_OF_ZERO
    return is_allowed or bool(identity.capabilities() >> _SYS_NICE & 1)


def has_groups() -> bool:
    """Returns True if the kernel groups processes by session, at least those without a separate
    control group.
    """
    try:
        return _GROUPS.read_text().strip() == "1"
    except OSError:
        return False
