"""Moves the GPU memory of another process to main memory and back, as Stoker does.

`python -m bench.gpu.checkpoint PID` prints the seconds of both steps as JSON. It exits with 3 if
the driver has no such function.
"""

import json
import sys
import time

from stoker.replica.checkpoint import Driver, DriverError

UNSUPPORTED = 3


def main(pid: int) -> None:
    try:
        driver = Driver()
    except (OSError, DriverError) as error:
        print(error)
        sys.exit(UNSUPPORTED)
    seconds: dict[str, float] = {}
    for name, step in (("sleep", driver.sleep), ("wake", driver.wake)):
        began = time.perf_counter()
        step(pid)
        seconds[name] = time.perf_counter() - began
    print(json.dumps(seconds))


if __name__ == "__main__":
    main(int(sys.argv[1]))
