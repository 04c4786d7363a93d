"""A stand-in for the inspecting worker. Answers only for files named `quick`."""

import os
import time

import msgspec

from stoker.base.workers.process import Fetch, serve
from stoker.inspection.failure import FailureCode
from stoker.inspection.messages import InspectResult, Question


def answer(question: bytes, fetch: Fetch) -> bytes:
    (name,) = msgspec.json.decode(question, type=Question).files
    if name == "ends":
        os._exit(1)
    if name != "quick":
        time.sleep(600)
    return msgspec.json.encode(InspectResult(code=FailureCode.BAD_JSON, message="It is quick."))


if __name__ == "__main__":
    serve(answer)
