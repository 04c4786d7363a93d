"""System call filter: calls that no engine needs fail with EPERM, or with ENOSYS as on a kernel
without them.

It rejects calls that bypass the other walls, and large, rarely used parts of the kernel. It is not
an allow list: libraries change the calls that they use with every version.
"""

import ctypes
import errno
import os
import socket
import struct
from collections.abc import Collection, Sequence

from stoker.sandbox import kernel

_X86_64, _AARCH64 = "x86_64", "aarch64"
_ARCHES = {_X86_64: 0xC000003E, _AARCH64: 0xC00000B7}
_COLUMN = {_X86_64: 0, _AARCH64: 1}
_X32 = 0x40000000
_SECCOMP = (317, 277)
_CLONE, _CLONE3 = (56, 220), 435
_SOCKET, _SOCKETPAIR = (41, 198), (53, 199)
_ENDPOINTS = {"connect": (42, 203), "bind": (49, 200), "listen": (50, 201), "accept": (43, 202)}
_ACCEPT4 = (288, 242)

_FORBIDDEN: dict[str, tuple[int | None, int | None]] = {
    # other processes
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "kcmp": (312, 272),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    # namespaces and file systems
    "setns": (308, 268),
    "unshare": (272, 97),
    "chroot": (161, 51),
    "pivot_root": (155, 41),
    "mount": (165, 40),
    "umount2": (166, 39),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_tree_attr": (467, 467),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    # parts of the kernel
    "bpf": (321, 280),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "userfaultfd": (323, 282),
    "perf_event_open": (298, 241),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "lookup_dcookie": (212, 18),
    "syslog": (103, 116),
    # memory that outlives the process and is shared with any process that knows its number
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "semget": (64, 190),
    "semop": (65, 193),
    "semctl": (66, 191),
    "semtimedop": (220, 192),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    # the machine
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "iopl": (172, None),
    "ioperm": (173, None),
}
_OPTIONAL = {
    *("pidfd_open", "pidfd_getfd", "pidfd_send_signal", "kcmp"),
    *("process_madvise", "process_mrelease", "memfd_secret", "open_tree_attr"),
}
"""Rejected calls that a kernel may lack. After ENOSYS, libraries use other calls instead. After
EPERM, they may fail.
"""
NUMBER, KEYCTL = (
    numbers[_COLUMN.get(kernel.MACHINE, 0)] or 0 for numbers in (_SECCOMP, _FORBIDDEN["keyctl"])
)
"""Numbers of two system calls: seccomp, and keyctl, which is rejected."""
_MEMORY_FILES = {"memfd_create": (319, 279), "memfd_secret": (447, 447)}
"""System calls for memory that no measurement of a process includes while it is not mapped."""
_NEW_NAMESPACES = 0x7E020000
"""All flags of clone that create a namespace."""
_OWN_ONLY = {
    # The first argument is a process; 0 is the caller. Calls with threads, such as
    # sched_setaffinity, are allowed: libraries use them for their own threads, and the filter
    # cannot distinguish these.
    "prlimit64": (302, 261),
    "sched_setattr": (314, 274),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
}
_PRIORITIES = {"setpriority": ((141, 140), 0), "ioprio_set": ((251, 30), 1)}
"""System calls with the kind of target in the first argument and its id in the second. The number
is the kind for a process.
"""
_SCHEDULER, _ORDINARY = (144, 119), 0
_SIGNALS = {"kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131)}

# Classic BPF, as in linux/filter.h and linux/seccomp.h.
_LOAD, _IF_EQUAL, _IF_AT_LEAST, _IF_ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_SET_MODE_FILTER = 1
_TSYNC, _SPEC_ALLOW = 1, 4
"""Flags: apply the filter to all threads, and disable a mitigation that older kernels enable and
that costs speed.
"""

LOCAL = (socket.AF_UNIX,)
LOOPBACK = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, 16)
"""Socket families for engines that connect to themselves over the loopback; 16 is AF_NETLINK."""

_Instruction = tuple[int, int, int, int]


def is_known() -> bool:
    """Returns True if the filter supports this processor."""
    return kernel.MACHINE in _ARCHES


def rejected() -> list[str]:
    """Returns the names of the calls that are rejected whatever their arguments are."""
    return [*_FORBIDDEN, *_OWN_ONLY, *_PRIORITIES, "sched_setscheduler", "socketpair"]


def error_of(name: str) -> int:
    """Returns the error of a rejected call."""
    return errno.ENOSYS if name in _OPTIONAL else errno.EPERM


def restrict(
    families: Collection[int] | None,
    *,
    others: bool,
    signals: bool,
    memory_files: bool,
    allowed: Collection[str] = (),
) -> None:
    """Installs the filter permanently. Raises `OSError`. Needs `no_new_privs`.

    Args:
        families: families of sockets that may be created. None allows all.
        others: True if the process may set priorities, limits and cores of other processes, for
            those below it.
        signals: True if it may send signals to other processes, within the kernel's limits.
        memory_files: True if it may create memory files, as drivers of GPUs do.
        allowed: names of calls among `rejected` that the filter allows anyway.
    """
    program: list[_Instruction] = []
    for name, numbers in {**_FORBIDDEN, **({} if memory_files else _MEMORY_FILES)}.items():
        if name not in allowed:
            program += _when(numbers, [_refusal(error_of(name))])
    program += _when((_CLONE3, _CLONE3), [_refusal(errno.ENOSYS)])
    program += _when(
        _CLONE, [_argument(0), (_IF_ANY_BIT, 0, 1, _NEW_NAMESPACES), _refusal(), _allowed()]
    )
    if families is not None:
        program += _when(_SOCKET, _only(0, families))
    if "socketpair" not in allowed:
        # A datagram socket may send to any address. Only pairs of stream sockets are known to be
        # safe.
        program += _when(
            _SOCKETPAIR,
            [_argument(1), (_AND, 0, 0, 0xF), *_among((socket.SOCK_STREAM, socket.SOCK_SEQPACKET))],
        )
    own_ids = (0, os.getpid())
    if not others:
        program += _own_only(own_ids, allowed)
    if not signals:
        for numbers in _SIGNALS.values():
            program += _when(numbers, _only(0, own_ids[1:]))
    _install(program, _SPEC_ALLOW)


def _own_only(own_ids: Collection[int], allowed: Collection[str]) -> list[_Instruction]:
    """Returns instructions that allow changes only of this process."""
    program: list[_Instruction] = []
    for name, numbers in _OWN_ONLY.items():
        if name not in allowed:
            program += _when(numbers, _only(0, own_ids))
    for name, (numbers, process) in _PRIORITIES.items():
        if name not in allowed:
            program += _when(
                numbers,
                [_argument(0), (_IF_EQUAL, 1, 0, process), _refusal(), *_only(1, own_ids)],
            )
    if "sched_setscheduler" not in allowed:
        # Allows only the current, ordinary policy, which libraries set for their threads.
        program += _when(_SCHEDULER, _only(1, [_ORDINARY]))
    return program


def seal() -> None:
    """Blocks new sockets and connections for all threads. Existing sockets keep working. Raises
    `OSError`.
    """
    program: list[_Instruction] = []
    for numbers in (_SOCKET, _ACCEPT4, *_ENDPOINTS.values()):
        program += _when(numbers, [_refusal()])
    _install(program, _SPEC_ALLOW | _TSYNC)


def _install(program: Sequence[_Instruction], flags: int) -> None:
    head: list[_Instruction] = [
        (_LOAD, 0, 0, _ARCH),
        # Calls of another architecture, such as 32-bit calls, have different numbers.
        (_IF_EQUAL, 1, 0, _ARCHES[kernel.MACHINE]),
        _refusal(),
        (_LOAD, 0, 0, _NUMBER),
    ]
    if kernel.MACHINE == _X86_64:
        head += [(_IF_AT_LEAST, 0, 1, _X32), _refusal()]
    packed = b"".join(
        struct.pack("=HBBI", *instruction) for instruction in (*head, *program, _allowed())
    )
    code = ctypes.create_string_buffer(packed, len(packed))
    filter_program = struct.pack("@HP", len(packed) // 8, ctypes.addressof(code))
    kernel.syscall(
        NUMBER,
        _SET_MODE_FILTER,
        flags,
        ctypes.create_string_buffer(filter_program, len(filter_program)),
    )


def _when(
    numbers: tuple[int | None, int | None], then: Sequence[_Instruction]
) -> list[_Instruction]:
    """Returns the instructions for one system call. `then` must end with a verdict, because the
    number is loaded only once.
    """
    number = numbers[_COLUMN[kernel.MACHINE]]
    return [] if number is None else [(_IF_EQUAL, 0, len(then), number), *then]


def _only(argument: int, values: Collection[int]) -> list[_Instruction]:
    return [_argument(argument), *_among(values)]


def _among(values: Collection[int]) -> list[_Instruction]:
    """Returns instructions that allow the call if the loaded value is in `values`, and reject it
    otherwise.
    """
    ordered = sorted(values)
    checks = [(_IF_EQUAL, len(ordered) - place, 0, value) for place, value in enumerate(ordered)]
    return [*checks, _refusal(), _allowed()]


def _argument(place: int) -> _Instruction:
    """Returns an instruction that loads the lower half of an argument. All checked arguments have
    32 bits.
    """
    return (_LOAD, 0, 0, _ARGUMENTS + 8 * place)


def _refusal(error: int = errno.EPERM) -> _Instruction:
    return (_RETURN, 0, 0, _ERRNO | error)


def _allowed() -> _Instruction:
    return (_RETURN, 0, 0, _ALLOW)
