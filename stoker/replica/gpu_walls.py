"""`python -m stoker.replica.gpu_walls`: tests whether CUDA starts inside a replica's walls.

It reads a `Cell` in JSON from standard input, and prints a `GpuWalls`. If CUDA starts only without
a wall, it finds what that wall blocks. Each attempt is a child process, because a driver may hang.
"""

import logging
import os
import sys
import time
from pathlib import Path

import msgspec

from stoker import sandbox
from stoker.replica.driver import context_problem
from stoker.sandbox import gpu_places, places
from stoker.sandbox.attempt import Attempt
from stoker.sandbox.diagnosis import Diagnosing
from stoker.wire.gpu_walls import GpuWalls
from stoker.wire.protocol import Cell

ATTEMPT_S = 30.0
"""Timeout of one attempt in seconds. A driver that wakes its devices needs some seconds."""
NARROWING_S = 60.0
"""Time in seconds after which the openings are not narrowed any further."""
_FILE_BYTES = 1 << 30


def look(diagnosing: Diagnosing) -> GpuWalls:
    diagnosis = diagnosing.run()
    return GpuWalls(
        problem=diagnosis.problem,
        bare_problem=diagnosis.bare_problem,
        openings=[*diagnosis.openings],
    )


def diagnosing(
    cell: Cell, attempt: Attempt = context_problem, timeout_s: float = ATTEMPT_S
) -> Diagnosing:
    """Prepares a diagnosis behind the walls of a replica on a GPU."""
    # Cached here, so that the forks need not search again.
    places.libraries()
    places.listed()
    gpu_places.gpus()
    gpu_places.libraries()
    walls = sandbox.Walls(
        folder=Path(cell.folder),
        kept_back=Path(cell.kept_back),
        user=cell.user,
        gpu=True,
        file_bytes=_FILE_BYTES,
    )
    return Diagnosing(walls, attempt, timeout_s, time.monotonic() + NARROWING_S)


def main() -> None:
    logging.disable()
    sandbox.die_with_parent()
    cell = msgspec.json.decode(sys.stdin.buffer.read(), type=Cell)
    # Libraries may print.
    output = os.dup(1)
    os.dup2(2, 1)
    os.write(output, msgspec.json.encode(look(diagnosing(cell))))


if __name__ == "__main__":
    main()
