"""`python -m tests.support.confined`: diagnoses an attempt behind the walls of a replica on a GPU.

It reads a JSON object: the attempt and its argument, the folder, the user to become, and names of
facts to change. It prints the diagnosis, and the problem behind each wall alone if asked.
"""

import json
import os
import resource
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from stoker.replica.driver import context_problem
from stoker.sandbox import gpu_places, kernel, places, seccomp
from stoker.sandbox.attempt import outcome_of, problem_of
from stoker.sandbox.diagnosis import PUT_UP, Diagnosing
from stoker.sandbox.walls import Walls

_SESSION_KEYRING = -3


def _read(path: str) -> str:
    Path(path).read_bytes()
    return ""


def _write(path: str) -> str:
    os.close(os.open(path, os.O_RDWR))
    return ""


def _call(_argument: object) -> str:
    kernel.syscall(seccomp.KEYCTL, 0, _SESSION_KEYRING, 1)
    return ""


def _connect(port: int) -> str:
    socket.create_connection(("127.0.0.1", port), timeout=5).close()
    return ""


def _big_file(size: int) -> str:
    descriptor = os.memfd_create("big")
    os.ftruncate(descriptor, size)
    return ""


def _own_namespace(inode: int) -> str:
    same = Path("/proc/self/ns/net").stat().st_ino == inode
    return "" if same else "another namespace"


def _many(_argument: object) -> str:
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    return "" if soft == resource.getrlimit(resource.RLIMIT_NPROC)[1] and soft < 0 else "limited"


def _signal(pid: int) -> str:
    os.kill(pid, 0)
    return ""


def _is_root(_argument: object) -> str:
    return "" if os.geteuid() == 0 else "another user"


def _read_and_call(path: str) -> str:
    return _read(path) or _call(None)


def _crash(_argument: object) -> str:
    os.abort()


def _hang(_argument: object) -> str:
    time.sleep(600)
    return ""


def _driver(_argument: object) -> str:
    return context_problem()


ATTEMPTS: dict[str, Callable[[Any], str]] = {
    "read": _read,
    "write": _write,
    "call": _call,
    "connect": _connect,
    "big_file": _big_file,
    "own_namespace": _own_namespace,
    "many": _many,
    "signal": _signal,
    "is_root": _is_root,
    "read_and_call": _read_and_call,
    "crash": _crash,
    "hang": _hang,
    "driver": _driver,
    "succeed": lambda _: "",
    "fail": lambda _: "broken",
}


def main() -> None:
    question = json.load(sys.stdin)
    if question.get("without_names"):
        gpu_places.thread_names = lambda **_: []
    places.libraries()
    places.listed()
    gpu_places.libraries()
    walls = Walls(
        folder=Path(question["folder"]),
        kept_back=Path(question["kept_back"]),
        user=question["user"],
        gpu=question.get("gpu", True),
        file_bytes=1 << 20,
    )
    attempt, argument = ATTEMPTS[question["attempt"]], question.get("argument")
    diagnosing = Diagnosing(
        walls, lambda: attempt(argument), question.get("timeout_s", 20), time.monotonic() + 60
    )
    if question.get("once"):
        outcome = outcome_of(diagnosing.attempt, diagnosing.timeout_s, walls)
        bare = problem_of(diagnosing.attempt, diagnosing.timeout_s)
        print(json.dumps({**outcome._asdict(), "bare": bare}))
        return
    alone = {wall: diagnosing.problem_behind(wall) for wall in PUT_UP} if question["alone"] else {}
    print(json.dumps({**asdict(replace(diagnosing.run())), "alone": alone}))


if __name__ == "__main__":
    main()
