"""`python -m stoker.workloads.evaluation.checks.process`: a worker of `Judges`."""

import json
from typing import Any

import msgspec

from stoker.base.workers.process import Fetch, serve
from stoker.workloads.evaluation.checks.expecting import failing, why_no_schema
from stoker.workloads.evaluation.checks.questions import Answer, Schemas


def answer(question: bytes, _: Fetch) -> bytes:
    asked: Schemas | Answer = msgspec.msgpack.decode(question, type=Schemas | Answer)
    found: list[str]
    if isinstance(asked, Schemas):
        schemas: list[Any] = json.loads(asked.schemas)
        found = [why_no_schema(one) for one in schemas]
    else:
        expect: dict[str, Any] = json.loads(asked.expect)
        found = [failing(expect, asked.content, is_written=asked.is_written)]
    return json.dumps(found).encode()


if __name__ == "__main__":
    serve(answer)
