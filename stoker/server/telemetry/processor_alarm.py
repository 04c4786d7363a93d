"""Alarm of the kernel that a thread has used processor time. Waiting for it costs nothing."""

import ctypes
import os
import signal
import threading

_SIGNAL = signal.SIGRTMIN + 5
_TO_THREAD = 4
"""`SIGEV_THREAD_ID`: the signal goes to one thread."""


class _Event(ctypes.Structure):
    """`struct sigevent` of Linux, 64 bytes long."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("number", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("thread", ctypes.c_int),
        ("padding", ctypes.c_byte * 44),
    )


class _Time(ctypes.Structure):
    """`struct timespec`."""

    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Period(ctypes.Structure):
    """`struct itimerspec`."""

    _fields_ = (("interval", _Time), ("first", _Time))


class ProcessorAlarm:
    """Wakes the thread that created it each time another thread has used some processor time."""

    def __init__(self, clock: int, every_s: float) -> None:
        """
        Args:
            clock: processor clock of the other thread; see `time.pthread_getcpuclockid`.
            every_s: processor seconds between two alarms.

        Raises:
            OSError: the kernel has no such timers.
        """
        self._library = ctypes.CDLL(None, use_errno=True)
        self._timer = ctypes.c_void_p()
        # Only this thread receives the signal, and only in `wait`.
        signal.pthread_sigmask(signal.SIG_BLOCK, {_SIGNAL})
        event = _Event(number=_SIGNAL, notify=_TO_THREAD, thread=threading.get_native_id())
        self._call("timer_create", clock, ctypes.byref(event), ctypes.byref(self._timer))
        time = _Time(int(every_s), int(every_s % 1 * 1e9))
        self._call("timer_settime", self._timer, 0, ctypes.byref(_Period(time, time)), None)

    def wait(self, seconds: float) -> bool:
        """Waits for an alarm. Returns False if none came within this time."""
        return signal.sigtimedwait({_SIGNAL}, seconds) is not None

    def close(self) -> None:
        self._call("timer_delete", self._timer)

    def _call(self, name: str, *arguments: object) -> None:
        function = getattr(self._library, name, None)
        if function is None or function(*arguments):
            number = ctypes.get_errno()
            raise OSError(number, f"{name}: {os.strerror(number)}")
