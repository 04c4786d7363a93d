"""Upper limit: Stoker's stages and engine in one process, without a server.

`python -m bench.inprocess TASK FOLDER THREADS [CONVERTED]` reads JSON lines `{"bodies": […],
"batch": N}`. It answers each with a list of seconds, one per batch, from bodies to encoded answers.
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
    """Parent side: a child process that runs the requested batches."""

    def __init__(self, loop: loops.Loop) -> None:
        self._loop = loop

    def run(self, bodies: Sequence[Mapping[str, Any]], batch: int = 1) -> list[float]:
        """Returns the seconds of each batch of the requests, in order."""
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
    """Starts a child with the torch engine, or with the model as converted for OpenVINO.

    Args:
        task: name in the registry.
    """
    arguments = [
        task,
        folder,
        str(cores()),
        *(msgspec.structs.astuple(converted) if converted else ()),
    ]
    command = [sys.executable, "-m", "bench.inprocess", *arguments]
    # Same environment as the replicas.
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
        """Returns the encoded answers of requests, computed in as few batches as possible."""
        requests = [self._task.request.model_validate(body) for body in bodies]
        outputs: list[list[list[Any]]] = []
        """Outputs by request, input and sample."""
        waiting: dict[Any, list[tuple[list[Any], int, Any]]] = {}
        for request in requests:
            for _, media in request.media():
                media.content = base64.b64decode(media.source or "")
            outputs.append([])
            for item in request.items()[0]:
                samples = self._stages.preprocess(item, request.parameters())
                item_outputs: list[Any] = [None] * len(samples)
                outputs[-1].append(item_outputs)
                for place, sample in enumerate(samples):
                    key = self._stages.batch_key(sample)
                    waiting.setdefault(key, []).append((item_outputs, place, sample))
        for group in waiting.values():
            group_outputs = self._engine.forward([sample for _, _, sample in group])
            for (item_outputs, place, _), output in zip(group, group_outputs, strict=True):
                item_outputs[place] = output
        return [
            self._answer(request, item_outputs)
            for item_outputs, request in zip(outputs, requests, strict=True)
        ]

    def _answer(self, request: Any, outputs: list[list[Any]]) -> bytes:
        finishing = {"model": "measured", **request.finishing()}
        is_single = request.items()[1]
        work = Work(0, self._task.name, [], request.parameters(), is_single, finishing)
        results = [
            self._stages.postprocess(item_outputs, request.parameters()) for item_outputs in outputs
        ]
        return msgspec.json.encode(self._task.finish(work, results), enc_hook=_plain)


def _plain(value: Any) -> Any:
    return value.tolist()


def main() -> None:
    task, folder, threads, *converted = sys.argv[1:]

    def loaded() -> Callable[[Any], list[float]]:
        engine = Engine(task, Path(folder), int(threads), *converted)
        return lambda task_body: _timed(engine, task_body["bodies"], task_body["batch"])

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
