"""A worker whose process may allocate little memory: `python -m tests.replica.short_of_memory`.

Prints the answers of its requests as JSON.
"""

import json
import queue
import resource
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from stoker.models.engines.torch import TorchEngine
from stoker.models.stages.base import Sample
from stoker.models.stages.watch import UNWATCHED, Watch
from stoker.models.tasks.registry import STAGES
from stoker.replica.calibration import Calibration
from stoker.replica.worker import TaskWorker
from stoker.wire.flight import FlightRecord
from stoker.wire.protocol import RequestFailure, RequestResult, Work
from tests.support.language import tokenizer

TASK = "feature-extraction"
FREE_BYTES = 192 << 20
WORDS = 100
"""Words of an input. A pass needs about 13 MiB for it."""
TOO_MANY_WORDS = 3000
INPUTS, POSITIONS = 32, 4096


def saved(folder: Path) -> Path:
    """Saves a small model whose passes need much memory."""
    words = tokenizer("bert")
    words.model_max_length = POSITIONS
    words.save_pretrained(folder)
    transformers.set_seed(1)
    config = transformers.BertConfig(
        vocab_size=len(words),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=1 << 15,
        max_position_embeddings=POSITIONS,
    )
    transformers.BertModel(config).save_pretrained(folder)
    return folder


class Counting(TorchEngine):
    """The torch engine, which also records the size of each batch."""

    def __init__(self) -> None:
        super().__init__("cpu", "float32", 1)
        self.sizes: list[int] = []

    def forward(
        self, samples: Sequence[Sample], watch: Watch = UNWATCHED
    ) -> list[Mapping[str, Any]]:
        self.sizes.append(len(samples))
        return super().forward(samples, watch)


def limit_memory() -> None:
    """Limits the process to the memory that it has now and `FREE_BYTES` more."""
    lines = Path("/proc/self/status").read_text().splitlines()
    size = next(int(line.split()[1]) for line in lines if line.startswith("VmSize:")) << 10
    resource.setrlimit(resource.RLIMIT_AS, (size + FREE_BYTES, size + FREE_BYTES))


def main(folder: Path) -> None:
    stages = STAGES[TASK](saved(folder / "model"))
    engine = Counting()
    stages.attach(engine.load(folder / "model", stages, lambda _fraction, _step: None))
    sent: queue.Queue[Any] = queue.Queue()
    worker = TaskWorker(
        engine,
        stages,
        lambda message, content: sent.put((message, content)),
        FlightRecord(folder / "flight"),
        Calibration({"torch": 1 << 20}),
    )
    worker.start()

    def ask(number: int, words: int, count: int) -> dict[str, Any]:
        worker.submit(Work(number, TASK, ["tower " * words] * count, {}, single=False))
        message, content = sent.get(timeout=120)
        if isinstance(message, RequestFailure):
            return {"code": message.code, "message": message.message, "param": message.param}
        assert isinstance(message, RequestResult)
        return {"vectors": json.loads(content)}

    ask(1, WORDS, 1)
    torch.set_num_threads(1)
    limit_memory()
    engine.sizes.clear()
    answers: dict[str, Any] = {"batch": ask(2, WORDS, INPUTS), "sizes": list(engine.sizes)}
    engine.sizes.clear()
    answers |= {"again": ask(3, WORDS, INPUTS), "sizes_again": list(engine.sizes)}
    answers |= {"large": ask(4, TOO_MANY_WORDS, 1), "small": ask(5, 1, 1)}
    worker.stop()
    print(json.dumps(answers))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
