"""OpenVINO GenAI in a loop, with the same requests as the servers."""

import contextlib
from collections.abc import Generator, Sequence
from pathlib import Path

from bench.common import Report, cores
from bench.loops import Loop, looping
from bench.peers import environments
from bench.streams import LOAD_S, Answer, Load

SIDE = "openvino-genai loop"
_PRECISIONS = {"float32": "f32", "bfloat16": "bf16"}


class GenAi:
    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    def load(self, prompts: Sequence[Sequence[int]], clients: int, tokens: int) -> Load:
        result = self._loop.ask(
            {"prompts": list(prompts), "clients": clients, "tokens": tokens, "most_s": LOAD_S}
        )
        answers = [Answer(sent_at, came, tokens) for sent_at, came in result["answers"]]
        return Load(result["seconds"], answers)


@contextlib.contextmanager
def genai(
    report: Report, place: Path, folder: Path, converted: Path, dtype: str
) -> Generator[GenAi]:
    """Starts a child process with the converted model in a folder. Raises `NotMadeError`."""
    command = [
        *(environments.python("openvino-genai"), "-m", "bench.peers.genai_loop"),
        *(folder, converted, _PRECISIONS[dtype], str(cores())),
    ]
    with looping(report, SIDE, command, {}, place) as loop:
        yield GenAi(loop)
