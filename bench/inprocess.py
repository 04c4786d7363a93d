"""The limit: our stages and engine called in one process, without a server.

`python -m bench.inprocess PIPELINE FOLDER THREADS [CONVERTED]` reads JSON lines
`{"bodies": […], "batch": N}` and answers each with `{"seconds": […]}`, one value a batch, from
bodies to encoded answers.
"""

import base64
import json
import os
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from bench.common import ROOT
from stoker.replica.protocol import Work


class InProcess:
    """The other end: a child process that is told what to run."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    def run(self, bodies: Sequence[Mapping[str, Any]], batch: int = 1) -> list[float]:
        """Seconds of each batch of the requests, in order."""
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("the child has no pipes")
        self._process.stdin.write(json.dumps({"bodies": list(bodies), "batch": batch}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the in-process child ended")
        return json.loads(line)["seconds"]


@contextmanager
def in_process(
    pipeline: str, folder: Path, threads: int, converted: Path | None = None
) -> Generator[InProcess]:
    """A child with the torch engine, or with the model converted for OpenVINO in a folder."""
    given = [pipeline, str(folder), str(threads), *([str(converted)] if converted else [])]
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.inprocess", *given],
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
    def __init__(self, pipeline: str, folder: Path, threads: int, converted: str = "") -> None:
        import transformers

        from stoker.replica.engines.openvino import OpenVinoEngine
        from stoker.tasks.registry import STAGES, TASKS

        transformers.utils.logging.disable_progress_bar()
        self._stages = STAGES[pipeline](folder)
        self._engine = OpenVinoEngine("cpu", "auto", threads)
        self._engine.enter_thread()
        self._stages.attach(self._engine.load(folder, self._stages, lambda *_: None))
        if converted:
            self._engine.adopt(Path(converted))
        self._task = TASKS[pipeline]

    def answer(self, bodies: Sequence[Mapping[str, Any]]) -> list[bytes]:
        """Encoded answers of requests that go through the model in as few batches as may be."""
        requests = [self._task.request.model_validate(body) for body in bodies]
        outputs: list[list[Any]] = []
        waiting: dict[Any, list[tuple[int, int, Any]]] = {}
        for number, request in enumerate(requests):
            for _, media in request.media():
                media.content = base64.b64decode(media.source or "")
            samples = self._stages.preprocess(request.items()[0][0], request.parameters())
            outputs.append([None] * len(samples))
            for place, sample in enumerate(samples):
                key = self._stages.batch_key(sample)
                waiting.setdefault(key, []).append((number, place, sample))
        for group in waiting.values():
            found = self._engine.forward([sample for _, _, sample in group])
            for (number, place, _), output in zip(group, found, strict=True):
                outputs[number][place] = output
        return [self._answer(request, own) for own, request in zip(outputs, requests, strict=True)]

    def _answer(self, request: Any, outputs: list[Any]) -> bytes:
        work = Work(0, self._task.name, [], request.parameters(), True, request.finishing())
        result = self._stages.postprocess(outputs, request.parameters())
        return msgspec.json.encode(self._task.finish(work, [result]), enc_hook=_plain)


def _plain(value: Any) -> Any:
    return value.tolist()


def main() -> None:
    pipeline, folder, threads, *converted = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    loop = Loop(pipeline, Path(folder), int(threads), *converted)
    for line in sys.stdin:
        task = json.loads(line)
        bodies, batch = task["bodies"], task["batch"]
        seconds: list[float] = []
        for start in range(0, len(bodies), batch):
            began = time.perf_counter()
            loop.answer(bodies[start : start + batch])
            seconds.append(time.perf_counter() - began)
        print(json.dumps({"seconds": seconds}), file=answers)


if __name__ == "__main__":
    main()
