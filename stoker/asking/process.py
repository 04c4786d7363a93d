"""`python -m stoker.asking.process`: compares large answers, as a worker of `Comparer`."""

import msgspec

from stoker.asking.pairs import Pair, compared
from stoker.workers.process import Fetch, serve


def answer(question: bytes, _: Fetch) -> bytes:
    pair = msgspec.msgpack.decode(question, type=Pair)
    return msgspec.msgpack.encode(compared(pair))


if __name__ == "__main__":
    serve(answer)
