"""A replica in a fresh process, for machines where forks of the engine host cannot use CUDA.

It imports everything itself, which takes about ten seconds and shares no memory with other
replicas.
"""

import os
import sys
from typing import NoReturn

import msgspec

from stoker import sandbox
from stoker.base.module_command import module_command
from stoker.replica import allocator
from stoker.replica import main as replica
from stoker.replica.preparation.permits import Permits
from stoker.wire.protocol import ReplicaSpec


def execute(spec: ReplicaSpec, permits: Permits) -> NoReturn:
    """Replaces this process by a fresh replica with the same process id, parent and environment."""
    descriptor = os.memfd_create("specification")
    os.write(descriptor, msgspec.msgpack.encode(spec))
    os.lseek(descriptor, 0, os.SEEK_SET)
    descriptors = (descriptor, permits.descriptor)
    for inherited in descriptors:
        os.set_inheritable(inherited, True)
    arguments = module_command("stoker.replica.fresh", *map(str, descriptors))
    os.execv(sys.executable, arguments)  # noqa: S606 — our own module


def main() -> None:
    sandbox.die_with_parent()
    with os.fdopen(int(sys.argv[1]), "rb") as specification:
        spec = msgspec.msgpack.decode(specification.read(), type=ReplicaSpec)
    allocator.keep_freed()
    sys.exit(replica.run(spec, permits=Permits(int(sys.argv[2]))))


if __name__ == "__main__":
    main()
