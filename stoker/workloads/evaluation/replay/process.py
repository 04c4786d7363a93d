"""Compares large answers in a worker process, which `Comparer` starts."""

import msgspec

from stoker.base.workers.process import Fetch, serve
from stoker.workloads.evaluation.replay.pairs import Pair, compared


def answer(question: bytes, _: Fetch) -> bytes:
    pair = msgspec.msgpack.decode(question, type=Pair)
    return msgspec.msgpack.encode(compared(pair))


if __name__ == "__main__":
    serve(answer)
