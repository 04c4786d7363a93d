"""The limit: our stages and engine called in one process, without a server.

`python -m bench.inprocess PIPELINE FOLDER THREADS` reads JSON lines `{"texts": […], "batch": N}`
and answers each with `{"seconds": […]}`, one value a batch, from texts to encoded answers.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.common import ROOT


class InProcess:
    """The other end: a child process that is told what to run."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    def run(self, texts: Sequence[str], batch: int = 1) -> list[float]:
        """Seconds of each batch of the texts, in order."""
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("the child has no pipes")
        self._process.stdin.write(json.dumps({"texts": list(texts), "batch": batch}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the in-process child ended")
        return json.loads(line)["seconds"]


@contextmanager
def in_process(pipeline: str, folder: Path, threads: int) -> Iterator[InProcess]:
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.inprocess", pipeline, str(folder), str(threads)],
        cwd=ROOT,
        # As the replicas have it.
        env={
            **os.environ,
            "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_OFFLINE": "1",
            "OMP_WAIT_POLICY": "PASSIVE",
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # As the replicas are: the kernel may share out its time by session.
        start_new_session=True,
    )
    try:
        yield InProcess(process)
    finally:
        process.kill()
        process.communicate()


class Loop:
    def __init__(self, pipeline: str, folder: Path, threads: int) -> None:
        import transformers

        from stoker.replica.engines.torch import TorchEngine
        from stoker.tasks.registry import TASKS

        transformers.utils.logging.disable_progress_bar()
        self._stages = TASKS[pipeline].stages(folder)
        self._engine = TorchEngine("cpu", "auto", threads)
        self._engine.enter_thread()
        self._stages.attach(self._engine.load(folder, self._stages, lambda *_: None))
        # What the replica is given for a request without parameters of its own.
        self._parameters = TASKS[pipeline].request.model_validate({"inputs": "a"}).parameters()

    def answer(self, texts: Sequence[str]) -> list[bytes]:
        """Encoded answers of texts that go through the model in one batch."""
        import msgspec

        samples = [self._stages.preprocess(text, self._parameters)[0] for text in texts]
        outputs = self._engine.forward(samples)
        return [
            msgspec.json.encode(
                self._stages.postprocess([output], self._parameters), enc_hook=_plain
            )
            for output in outputs
        ]


def _plain(value: Any) -> Any:
    return value.tolist()


def main() -> None:
    pipeline, folder, threads = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    loop = Loop(pipeline, Path(folder), int(threads))
    for line in sys.stdin:
        task = json.loads(line)
        texts, batch = task["texts"], task["batch"]
        seconds: list[float] = []
        for start in range(0, len(texts), batch):
            began = time.perf_counter()
            loop.answer(texts[start : start + batch])
            seconds.append(time.perf_counter() - began)
        print(json.dumps({"seconds": seconds}), file=answers)


if __name__ == "__main__":
    main()
