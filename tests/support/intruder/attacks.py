"""Attacks that an attacker's code would try. `intruder` runs them in a replica. As a program, they
run without walls.

Each attack returns its result or raises.
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
    """Reads the first 8 bytes of another process's memory."""
    with Path(f"/proc/{pid}/maps").open() as maps:
        start = int(maps.readline().split("-")[0], 16)
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        memory.seek(start)
        return f"{len(memory.read(8))} bytes"


def listing(path: str) -> str:
    return f"{len([*Path(path).iterdir()])} files"


def write(path: str) -> str:
    """Opens a file for writing and changes nothing."""
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
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
    return "limited"


def slow_down(pid: int) -> str:
    os.setpriority(os.PRIO_PROCESS, pid, os.getpriority(os.PRIO_PROCESS, pid))
    return "slowed down"


def enter_network(pid: int) -> str:
    with Path(f"/proc/{pid}/ns/net").open() as namespace:
        return _checked(_libc.setns(namespace.fileno(), 0))


def set_namespace(_pid: int) -> str:
    """Calls `setns` for the process's current namespace, which needs no file of another process."""
    with Path("/proc/self/ns/uts").open() as namespace:
        return _checked(_libc.setns(namespace.fileno(), 0))


def connect(address: list[Any]) -> str:
    with socket.create_connection((address[0], address[1]), timeout=5):
        return "connected"


def connect_locally(path: str) -> str:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        return "connected"


def send_locally(path: str) -> str:
    """Sends through a datagram socket pair, which may send to any other socket."""
    sender, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with sender, other:
        sender.sendto(b"", path)
    return "sent"


def multiply(most: int) -> str:
    """Starts as many processes as the limit allows, up to `most`."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    resource.setrlimit(resource.RLIMIT_NPROC, (most, resource.getrlimit(resource.RLIMIT_NPROC)[1]))
    started = list[subprocess.Popen[bytes]]()
    try:
        while len(started) < most + 8:
            started.append(subprocess.Popen(["/bin/sleep", "60"], stdin=subprocess.DEVNULL))
        return f"{len(started)} of {allowed}"
    finally:
        for process in started:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
        resource.setrlimit(resource.RLIMIT_NPROC, (allowed, hard))


def may_multiply(_given: object) -> str:
    return str(resource.getrlimit(resource.RLIMIT_NPROC)[1])


def leave_behind(_given: object) -> str:
    """Starts a process in a separate session, which would outlive its parent."""
    code = "import os, time; os.fork() and os._exit(0); os.setsid(); print(os.getpid(), flush=True)"
    with subprocess.Popen(
        [sys.executable, "-S", "-c", f"{code}; time.sleep(600)"], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout
        return process.stdout.readline().decode().strip()


def mount(folder: str) -> str:
    """Mounts in a private namespace if it may create one, so that nothing remains."""
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
    """Creates System V shared memory. It would outlive the process and be open to every process
    that knows its number.
    """
    identifier = _libc.shmget(0, 4096, 0o1666)
    if identifier >= 0:
        _libc.shmctl(identifier, 0, None)
    return _checked(identifier)


def semaphores(_given: object) -> str:
    identifier = _libc.semget(0, 1, 0o1666)
    if identifier >= 0:
        _libc.semctl(identifier, 0, 0)
    return _checked(identifier)


def messages(_given: object) -> str:
    identifier = _libc.msgget(0, 0o1666)
    if identifier >= 0:
        _libc.msgctl(identifier, 0, None)
    return _checked(identifier)


def message_queue(_given: object) -> str:
    name = b"/stoker-test"
    descriptor = _libc.mq_open(name, os.O_CREAT | os.O_RDWR, 0o666, None)
    if descriptor >= 0:
        _libc.mq_unlink(name)
    return _checked(descriptor)


def memory_file(_given: object) -> str:
    return str(os.memfd_create("hidden"))


def below(mib: int) -> str:
    """Starts a process in a separate session that holds memory, and returns at once."""
    program = f"a = b'x' * ({mib} << 20); import time; time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", program], start_new_session=True)
    return str(child.pid)


def left_behind(_given: object) -> str:
    """Starts a process in a separate session and ends its parent."""
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
    # UFFD_USER_MODE_ONLY needs no privilege.
    return _checked(_libc.syscall(_USERFAULTFD[os.uname().machine], 1))


def clone3(_given: object) -> str:
    """Calls `clone3` with invalid arguments, so that it creates nothing if it is allowed."""
    result = _libc.syscall(_CLONE3, None, 0)
    if result < 0 and ctypes.get_errno() == errno.EINVAL:
        return "asked"
    return _checked(result)


def environment(_given: object) -> str:
    text = Path("/proc/self/environ").read_bytes().decode()
    return " ".join(sorted({*os.environ, *(entry.partition("=")[0] for entry in text.split("\0"))}))


def identity(_given: object) -> str:
    lines = Path("/proc/self/status").read_text().splitlines()
    names = ("Uid", "CapEff", "CapPrm", "CapBnd", "NoNewPrivs", "Seccomp")
    fields = dict(line.split(":", 1) for line in lines)
    return json.dumps({name: fields[name].split()[0] for name in names})


def descriptors(_given: object) -> str:
    """Returns the open files of this process, without memory and events."""
    places = Path("/proc/self/fd").iterdir()
    targets = {str(path.readlink()) for path in places if path.is_symlink()}
    return "\n".join(sorted(path for path in targets if path.startswith("/")))


def scratch(_given: object) -> str:
    """Tries two allowed actions: writing below its home and running a program."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"a" * 1000)
        done = subprocess.run(["/bin/echo", "hello"], capture_output=True, check=True, text=True)
        return f"{Path(file.name).is_relative_to(Path.home())} {done.stdout.strip()}"


def _in_child(call: Callable[[], int]) -> str:
    """Runs the call in a child process, because it would change the caller."""
    process = os.fork()
    if process == 0:
        os._exit(ctypes.get_errno() if call() < 0 else 0)
    if failed := os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]):
        raise OSError(failed, os.strerror(failed))
    return "done"


def said(order: str) -> str:
    """Runs the attack `{"attack": name, "given": …}` and returns `did: …` or `refused: …`."""
    request = json.loads(order)
    try:
        return f"did: {globals()[request['attack']](request['given'])}"
    except OSError as error:
        return f"refused: {errno.errorcode.get(error.errno or 0, error)} {error}"


if __name__ == "__main__":
    print(said(sys.argv[1]))
