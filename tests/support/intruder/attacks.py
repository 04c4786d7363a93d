"""What an attacker's code would try. In a replica by `intruder`, without walls as a program.

Each returns what it came to, or raises.
"""

import ctypes
import errno
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
_PRIVATE = 0x44000
_NUMBERS = {
    "x86_64": {"ptrace": 101, "keyctl": 250, "bpf": 321, "process_vm_readv": 310},
    "aarch64": {"ptrace": 117, "keyctl": 219, "bpf": 280, "process_vm_readv": 270},
}[os.uname().machine]
_IO_URING_SETUP, _CLONE3, _USERFAULTFD = 425, 435, {"x86_64": 323, "aarch64": 282}
_libc = ctypes.CDLL(None, use_errno=True)


def _checked(found: int) -> str:
    if found < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return str(found)


def read(path: str) -> str:
    with Path(path).open("rb") as file:
        return f"{len(file.read(8))} bytes"


def look_into(pid: int) -> str:
    """Read a page of another process's memory."""
    with Path(f"/proc/{pid}/maps").open() as maps:
        start = int(maps.readline().split("-")[0], 16)
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        memory.seek(start)
        return f"{len(memory.read(8))} bytes"


def listing(path: str) -> str:
    return f"{len([*Path(path).iterdir()])} files"


def write(path: str) -> str:
    """Only opened for it: nothing is changed where that is not refused."""
    os.close(os.open(path, os.O_WRONLY | os.O_APPEND))
    return "open"


def create(path: str) -> str:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    Path(path).unlink()
    return "created"


def link(path: str) -> str:
    name = Path(tempfile.mkdtemp()) / "link"
    name.symlink_to(path)
    return "linked"


def pipe(_path: str) -> str:
    os.mkfifo(Path(tempfile.mkdtemp()) / "pipe")
    return "made"


def send_signal(pid: int) -> str:
    os.kill(pid, 0)
    return "may be signalled"


def signal_group(pid: int) -> str:
    os.killpg(os.getpgid(pid), 0)
    return "may be signalled"


def limit(pid: int) -> str:
    found = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, found)
    return "limited"


def slow_down(pid: int) -> str:
    os.setpriority(os.PRIO_PROCESS, pid, os.getpriority(os.PRIO_PROCESS, pid))
    return "slowed down"


def enter_network(pid: int) -> str:
    with Path(f"/proc/{pid}/ns/net").open() as namespace:
        return _checked(_libc.setns(namespace.fileno(), 0))


def set_namespace(_pid: int) -> str:
    """`setns` into the namespace that it is in, which needs no file of others."""
    with Path("/proc/self/ns/uts").open() as namespace:
        return _checked(_libc.setns(namespace.fileno(), 0))


def connect(address: list[Any]) -> str:
    with socket.create_connection((address[0], address[1]), timeout=5):
        return "connected"


def connect_locally(path: str) -> str:
    with socket.socket(socket.AF_UNIX) as one:
        one.connect(path)
        return "connected"


def send_locally(path: str) -> str:
    """By a pair of sockets for datagrams, which may send to any other."""
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with one, other:
        one.sendto(b"", path)
    return "sent"


def multiply(most: int) -> str:
    """Start as many processes as it may, where that is no more than `most`."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    resource.setrlimit(resource.RLIMIT_NPROC, (most, resource.getrlimit(resource.RLIMIT_NPROC)[1]))
    started = list[subprocess.Popen[bytes]]()
    try:
        while len(started) < most + 8:
            started.append(subprocess.Popen(["/bin/sleep", "60"], stdin=subprocess.DEVNULL))
        return f"{len(started)} of {allowed}"
    finally:
        for one in started:
            os.kill(one.pid, signal.SIGKILL)
            one.wait()
        hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
        resource.setrlimit(resource.RLIMIT_NPROC, (allowed, hard))


def may_multiply(_given: object) -> str:
    return str(resource.getrlimit(resource.RLIMIT_NPROC)[1])


def leave_behind(_given: object) -> str:
    """A process in a session of its own, which would outlive its parent."""
    code = "import os, time; os.fork() and os._exit(0); os.setsid(); print(os.getpid(), flush=True)"
    with subprocess.Popen(
        [sys.executable, "-S", "-c", f"{code}; time.sleep(600)"], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout
        return process.stdout.readline().decode().strip()


def mount(folder: str) -> str:
    """In a namespace of its own, where it may have one: nothing is left behind."""
    process = os.fork()
    if process == 0:
        kinds = _CLONE_NEWNS | (0 if os.geteuid() == 0 else _CLONE_NEWUSER)
        _libc.unshare(kinds)
        _libc.mount(None, b"/", None, _PRIVATE, None)
        done = _libc.mount(b"none", folder.encode(), b"tmpfs", 0, None)
        os._exit(ctypes.get_errno() if done < 0 else 0)
    if failed := os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]):
        raise OSError(failed, os.strerror(failed))
    return "mounted"


def unshare(_given: object) -> str:
    return _in_child(lambda: _libc.unshare(_CLONE_NEWUSER))


def trace(_given: object) -> str:
    return _in_child(lambda: _libc.syscall(_NUMBERS["ptrace"], 0, 0, 0, 0))


def ring(_given: object) -> str:
    return _checked(_libc.syscall(_IO_URING_SETUP, 1, ctypes.create_string_buffer(120)))


def keyring(_given: object) -> str:
    return _checked(_libc.syscall(_NUMBERS["keyctl"], 0, -3, 1))


def shared_memory(_given: object) -> str:
    """System V's: it would outlive the process, for whoever knows its number."""
    found = _libc.shmget(0, 4096, 0o1666)
    if found >= 0:
        _libc.shmctl(found, 0, None)
    return _checked(found)


def semaphores(_given: object) -> str:
    found = _libc.semget(0, 1, 0o1666)
    if found >= 0:
        _libc.semctl(found, 0, 0)
    return _checked(found)


def messages(_given: object) -> str:
    found = _libc.msgget(0, 0o1666)
    if found >= 0:
        _libc.msgctl(found, 0, None)
    return _checked(found)


def message_queue(_given: object) -> str:
    name = b"/stoker-test"
    found = _libc.mq_open(name, os.O_CREAT | os.O_RDWR, 0o666, None)
    if found >= 0:
        _libc.mq_unlink(name)
    return _checked(found)


def memory_file(_given: object) -> str:
    return str(os.memfd_create("hidden"))


def below(mib: int) -> str:
    """Have a process in a session of its own hold memory, and answer at once."""
    program = f"a = b'x' * ({mib} << 20); import time; time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", program], start_new_session=True)
    return str(child.pid)


def left_behind(_given: object) -> str:
    """The same of a process whose parent ends."""
    program = (
        "import os, sys, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    print(os.getpid(), flush=True)\n"
        "    os.close(1)\n"
        "    time.sleep(60)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=True)
    return done.stdout.decode().strip()


def faults(_given: object) -> str:
    # UFFD_USER_MODE_ONLY, which needs no privilege.
    return _checked(_libc.syscall(_USERFAULTFD[os.uname().machine], 1))


def clone3(_given: object) -> str:
    """With arguments that are none, so that nothing is made where it is not refused."""
    found = _libc.syscall(_CLONE3, None, 0)
    if found < 0 and ctypes.get_errno() == errno.EINVAL:
        return "asked"
    return _checked(found)


def environment(_given: object) -> str:
    own = Path("/proc/self/environ").read_bytes().decode()
    return " ".join(sorted({*os.environ, *(one.partition("=")[0] for one in own.split("\0"))}))


def identity(_given: object) -> str:
    lines = Path("/proc/self/status").read_text().splitlines()
    wanted = ("Uid", "CapEff", "CapPrm", "CapBnd", "NoNewPrivs", "Seccomp")
    found = dict(line.split(":", 1) for line in lines)
    return json.dumps({name: found[name].split()[0] for name in wanted})


def descriptors(_given: object) -> str:
    """What is open here, but memory and events."""
    places = Path("/proc/self/fd").iterdir()
    found = {str(one.readlink()) for one in places if one.is_symlink()}
    return "\n".join(sorted(one for one in found if one.startswith("/")))


def scratch(_given: object) -> str:
    """What it may do: write below its home, and run a program."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"a" * 1000)
        done = subprocess.run(["/bin/echo", "hello"], capture_output=True, check=True, text=True)
        return f"{Path(file.name).is_relative_to(Path.home())} {done.stdout.strip()}"


def _in_child(call: Callable[[], int]) -> str:
    """In a child, which the call would change."""
    process = os.fork()
    if process == 0:
        os._exit(ctypes.get_errno() if call() < 0 else 0)
    if failed := os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]):
        raise OSError(failed, os.strerror(failed))
    return "done"


def said(order: str) -> str:
    """What came of `{"attack": name, "given": …}`: `did: …` or `refused: …`."""
    wanted = json.loads(order)
    try:
        return f"did: {globals()[wanted['attack']](wanted['given'])}"
    except OSError as error:
        return f"refused: {errno.errorcode.get(error.errno or 0, error)} {error}"


if __name__ == "__main__":
    print(said(sys.argv[1]))
