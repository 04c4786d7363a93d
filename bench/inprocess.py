"""The limit: our stages and engine called in one process, without a server.

`python -m bench.inprocess TASK FOLDER THREADS [CONVERTED]` reads JSON lines
`{"bodies": […], "batch": N}` and answers each with a list of seconds, one a batch, from bodies to
encoded answers.
"""

import base64
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from bench import loops
from bench.common import Report, cores
from bench.peers.answering import answer
from stoker.runtime.local.processes.engine_host import SPINS
from stoker.wire.protocol import Execution, Work


class InProcess:
    """The other end: a child process that is told what to run."""

    def __init__(self, loop: loops.Loop) -> None:
        self._loop = loop

    def run(self, bodies: Sequence[Mapping[str, Any]], batch: int = 1) -> list[float]:
        """Seconds of each batch of the requests, in order."""
        return self._loop.ask({"bodies": list(bodies), "batch": batch})


@contextmanager
def in_process(
    report: Report,
    task: str,
    folder: Path,
    place: Path,
    converted: Execution | None = None,
    side: str = "in-process",
    *,
    is_suspended: bool = True,
) -> Generator[InProcess]:
    """A child with the torch engine, or with the model as it was converted for OpenVINO.

    Args:
        task: as the registry names it.
    """
    given = [task, folder, str(cores()), *(msgspec.structs.astuple(converted) if converted else ())]
    command = [sys.executable, "-m", "bench.inprocess", *given]
    # As the replicas have it.
    environment = {"TOKENIZERS_PARALLELISM": "false", **SPINS}
    with loops.looping(
        report, side, command, environment, place, is_suspended=is_suspended
    ) as loop:
        yield InProcess(loop)


class Engine:
    def __init__(self, task: str, folder: Path, threads: int, *converted: str) -> None:
        import transformers

        from stoker.models.engines.openvino import OpenVinoEngine
        from stoker.models.tasks.registry import STAGES, TASKS

        transformers.utils.logging.disable_progress_bar()
        self._task = TASKS[task]
        self._stages = STAGES[self._task.pipeline](folder)
        self._engine = OpenVinoEngine("cpu", "auto", threads)
        self._engine.enter_thread()
        self._stages.attach(self._engine.load(folder, self._stages, lambda *_: None))
        if converted:
            self._engine.prepare(Execution(*converted))()  # type: ignore[arg-type]

    def answer(self, bodies: Sequence[Mapping[str, Any]]) -> list[bytes]:
        """Encoded answers of requests that go through the model in as few batches as may be."""
        requests = [self._task.request.model_validate(body) for body in bodies]
        outputs: list[list[list[Any]]] = []
        """By request, input of it, and sample of that."""
        waiting: dict[Any, list[tuple[list[Any], int, Any]]] = {}
        for request in requests:
            for _, media in request.media():
                media.content = base64.b64decode(media.source or "")
            outputs.append([])
            for item in request.items()[0]:
                samples = self._stages.preprocess(item, request.parameters())
                own: list[Any] = [None] * len(samples)
                outputs[-1].append(own)
                for place, sample in enumerate(samples):
                    key = self._stages.batch_key(sample)
                    waiting.setdefault(key, []).append((own, place, sample))
        for group in waiting.values():
            found = self._engine.forward([sample for _, _, sample in group])
            for (own, place, _), output in zip(group, found, strict=True):
                own[place] = output
        return [self._answer(request, own) for own, request in zip(outputs, requests, strict=True)]

    def _answer(self, request: Any, outputs: list[list[Any]]) -> bytes:
        finishing = {"model": "measured", **request.finishing()}
        is_single = request.items()[1]
        work = Work(0, self._task.name, [], request.parameters(), is_single, finishing)
        results = [self._stages.postprocess(own, request.parameters()) for own in outputs]
        return msgspec.json.encode(self._task.finish(work, results), enc_hook=_plain)


def _plain(value: Any) -> Any:
    return value.tolist()


def main() -> None:
    task, folder, threads, *converted = sys.argv[1:]

    def loaded() -> Callable[[Any], list[float]]:
        engine = Engine(task, Path(folder), int(threads), *converted)
        return lambda asked: _timed(engine, asked["bodies"], asked["batch"])

    answer(loaded)


def _timed(engine: Engine, bodies: Sequence[Mapping[str, Any]], batch: int) -> list[float]:
    seconds: list[float] = []
    for start in range(0, len(bodies), batch):
        began = time.perf_counter()
        engine.answer(bodies[start : start + batch])
        seconds.append(time.perf_counter() - began)
    return seconds


if __name__ == "__main__":
    main()
