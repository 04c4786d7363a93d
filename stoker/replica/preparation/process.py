"""A preparation process: prepares inputs with a copy of the model's stages.

It is forked from the preparation parent, so it starts with the stages and imports in memory.
"""

import logging
import os
import signal
import socket
import time
import traceback
from typing import Any

from stoker.models.engines.openmp import keep_to_one_core
from stoker.models.stages.base import InputError, Stages
from stoker.replica.preparation.messages import (
    AREA_BYTES,
    AREAS,
    FAILED,
    HELLO,
    JOB,
    OUTCOME,
    PREPARED,
    REFUSED,
    TOO_LARGE,
    SharedMemory,
)
from stoker.replica.preparation.payload import TooLargeError, aligned, decode, encode

log = logging.getLogger(__name__)

LONGEST_S = 120.0
"""Maximum seconds of one preparation. A process that takes longer ends."""


def serve(connection: socket.socket, memory: SharedMemory, number: int, stages: Stages) -> None:
    """Prepares inputs until the replica closes the connection."""
    keep_to_one_core()
    connection.sendall(HELLO.pack(os.getpid()))
    areas = [memory.area(number, area) for area in range(AREAS)]
    while message := connection.recv(JOB.size):
        job: tuple[int, int] = JOB.unpack(message)
        area, size = job
        memory_of_job = areas[area]
        started = time.perf_counter()
        # Without a handler, the signal ends the process.
        signal.setitimer(signal.ITIMER_REAL, LONGEST_S)
        kind, value = _outcome(stages, memory_of_job[:size])
        signal.setitimer(signal.ITIMER_REAL, 0)
        seconds = time.perf_counter() - started
        # After the input, because samples may refer to it.
        place = aligned(size)
        room = memory_of_job[place:]
        try:
            written = encode(value, room)
        except TooLargeError:
            kind, written = TOO_LARGE, 0
        except Exception:
            kind, written = FAILED, encode(_traceback(), room)
        connection.sendall(OUTCOME.pack(area, kind, place, written, seconds))


def _outcome(stages: Stages, payload: memoryview) -> tuple[int, Any]:
    try:
        item, parameters = decode(payload, is_copied=False)
        return PREPARED, stages.preprocess_item(item, parameters)
    except InputError as error:
        return REFUSED, (error.message, error.field, error.of_item, error.code)
    except Exception:
        return FAILED, _traceback()


def _traceback() -> str:
    return traceback.format_exc()[-AREA_BYTES // 1024 :]
