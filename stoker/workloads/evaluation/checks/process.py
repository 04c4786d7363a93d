"""`python -m stoker.workloads.evaluation.checks.process`: a worker of `Judges`."""

import json
from typing import Any

import msgspec

from stoker.base.workers.process import Fetch, serve
from stoker.workloads.evaluation.checks.expecting import failing, why_no_schema
from stoker.workloads.evaluation.checks.questions import CheckSchemas, CompareAnswer


def answer(question: bytes, _: Fetch) -> bytes:
    request: CheckSchemas | CompareAnswer = msgspec.msgpack.decode(
        question, type=CheckSchemas | CompareAnswer
    )
    replies: list[str]
    if isinstance(request, CheckSchemas):
        schemas: list[Any] = json.loads(request.schemas)
        replies = [why_no_schema(schema) for schema in schemas]
    else:
        expect: dict[str, Any] = json.loads(request.expect)
        replies = [failing(expect, request.content, is_written=request.is_written)]
    return json.dumps(replies).encode()


if __name__ == "__main__":
    serve(answer)
