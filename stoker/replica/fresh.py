"""A replica in a fresh process, for machines where forks of the engine host cannot use CUDA.

It imports everything itself, which takes about ten seconds and shares no memory with other
replicas.
"""

import os
import sys
from typing import NoReturn

import msgspec

from stoker import sandbox
from stoker.replica import allocator
from stoker.replica import main as replica
from stoker.wire.protocol import ReplicaSpec


def execute(spec: ReplicaSpec) -> NoReturn:
    """Replaces this process by a fresh replica with the same process id, parent and environment."""
    descriptor = os.memfd_create("specification")
    os.write(descriptor, msgspec.msgpack.encode(spec))
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.set_inheritable(descriptor, True)
    arguments = [sys.executable, "-m", "stoker.replica.fresh", str(descriptor)]
    os.execv(sys.executable, arguments)  # noqa: S606 — our own module


def main() -> None:
    sandbox.die_with_parent()
    with os.fdopen(int(sys.argv[1]), "rb") as specification:
        spec = msgspec.msgpack.decode(specification.read(), type=ReplicaSpec)
    allocator.keep_freed()
    sys.exit(replica.run(spec))


if __name__ == "__main__":
    main()
