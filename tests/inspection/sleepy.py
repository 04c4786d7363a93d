"""A process in the place of the inspecting one: it answers about the files `quick` alone."""

import os
import sys
import time

from stoker.inspection.failure import FailureCode
from stoker.inspection.messages import Ask, Found, Limits, frame
from stoker.inspection.process import _read

if __name__ == "__main__":
    _read(Limits)
    while ask := _read(Ask):
        (name,) = ask.files
        if name == "ends":
            os._exit(1)
        if name != "quick":
            time.sleep(600)
        found = Found(code=FailureCode.BAD_JSON, message="It is quick.")
        sys.stdout.buffer.write(frame(found))
        sys.stdout.buffer.flush()
