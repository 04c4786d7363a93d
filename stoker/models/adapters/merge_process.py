"""`python -m stoker.models.adapters.merge_process`: merges an adapter into its base, confined.

It reads a `MergeTask` in JSON from standard input, and sets up its walls before it touches a file.
"""

import os
import resource
import sys
from pathlib import Path

import msgspec

from stoker import sandbox
from stoker.models.adapters.merge_job import Confinement, MergeTask

_NICE = 10


def main() -> None:
    sandbox.die_with_parent()
    os.nice(_NICE)
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=MergeTask)
    try:
        _confine(task.confinement)
        # Imported after the walls are set up, which require a single-threaded process.
        from stoker.models.adapters.merging import merge

        merge(task.job)
    except (OSError, EOFError) as error:
        sys.exit(f"{getattr(error, 'strerror', None) or error}")
    except MemoryError:
        sys.exit("it takes too much memory.")


def _confine(given: Confinement) -> None:
    sandbox.confine(
        sandbox.Walls(
            folder=Path(given.folder),
            kept_back=Path(given.kept_back),
            user=given.user,
            reads=[Path(path) for path in given.reads],
            writes=[Path(path) for path in given.writes],
            file_bytes=given.file_bytes,
        )
    )
    sandbox.seal()
    resource.setrlimit(resource.RLIMIT_AS, (given.memory_bytes, given.memory_bytes))


if __name__ == "__main__":
    main()
