"""The limit for chats: OpenVINO GenAI's continuous batching in a loop, without a server.

`python -m bench.peers.genai_loop MODEL CONVERTED PRECISION THREADS` reads JSON lines
`{"prompts": [[token, …], …], "clients": N, "tokens": M}` and answers each with
`{"seconds": s, "answers": [[asked, [came, …]], …]}`.
"""

import contextlib
import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy

from bench.common import ROOT
from bench.peers import environments
from bench.streams import LOAD_S, Answer, Load

CACHE_GIB = 2


class GenAi:
    """The other end: a child process that is told what to run."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    def load(self, prompts: Sequence[Sequence[int]], clients: int, tokens: int) -> Load:
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("the child has no pipes")
        task = {"prompts": list(prompts), "clients": clients, "tokens": tokens}
        self._process.stdin.write(json.dumps(task) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the loop of openvino-genai ended")
        found = json.loads(line)
        return Load(
            found["seconds"], [Answer(asked, came, tokens) for asked, came in found["answers"]]
        )


@contextlib.contextmanager
def genai(folder: Path, converted: Path, precision: str, threads: int) -> Generator[GenAi]:
    """A child with the model that lies converted in a folder."""
    given = [str(folder), str(converted), precision, str(threads)]
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.peers.genai_loop", *given],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": str(environments.genai()),
            "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_OFFLINE": "1",
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # As our replicas are: the kernel may share out its time by session.
        start_new_session=True,
    )
    try:
        yield GenAi(process)
    finally:
        process.kill()
        process.communicate()


class Loop:
    def __init__(self, folder: Path, converted: Path, precision: str, threads: int) -> None:
        import openvino
        import transformers

        self._openvino: Any = openvino
        # These are in a folder of their own.
        self._genai: Any = importlib.import_module("openvino_genai")
        tokenizers: Any = importlib.import_module("openvino_tokenizers")
        schedule = self._genai.SchedulerConfig()
        schedule.cache_size = CACHE_GIB
        # As ours is told to.
        options = {
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": precision,
            "KV_CACHE_PRECISION": precision,
            "PERFORMANCE_HINT": "LATENCY",
        }
        words: Any = transformers.AutoTokenizer.from_pretrained(folder)
        made = tokenizers.convert_tokenizer(words, with_detokenizer=True)
        with TemporaryDirectory() as place:
            # It knows models by the names that optimum-intel gives.
            for suffix in ("xml", "bin"):
                link = Path(place, f"openvino_model.{suffix}")
                link.symlink_to(converted / f"language_model.{suffix}")
            for name in ("config.json", "generation_config.json"):
                Path(place, name).symlink_to(folder / name)
            for name, model in zip(("tokenizer", "detokenizer"), made, strict=True):
                openvino.save_model(model, Path(place, f"openvino_{name}.xml"))
            self._pipe = self._genai.ContinuousBatchingPipeline(place, schedule, "CPU", options)
        self._numbers = 0

    def run(self, prompts: list[list[int]], clients: int, tokens: int) -> dict[str, Any]:
        """Keep so many prompts in the loop until all have their tokens."""
        waiting = [prompts[number::clients] for number in range(clients)]
        answers: list[tuple[float, list[float]]] = []
        running: dict[int, tuple[Any, float, list[float]]] = {}
        started = time.perf_counter()
        for number in range(clients):
            running[number] = self._begun(waiting[number].pop(0), tokens)
        while running:
            self._pipe.step()
            for number, (handle, asked, came) in list(running.items()):
                if handle.can_read():
                    now = time.perf_counter()
                    for output in handle.read().values():
                        came.extend(now for _ in output.generated_ids)
                if len(came) < tokens:
                    continue
                answers.append((asked, came))
                del running[number]
                if waiting[number] and time.perf_counter() - started < LOAD_S:
                    running[number] = self._begun(waiting[number].pop(0), tokens)
        seconds = max(came[-1] for _, came in answers) - started
        return {"seconds": seconds, "answers": answers}

    def _begun(self, prompt: list[int], tokens: int) -> tuple[Any, float, list[float]]:
        asked = time.perf_counter()
        config = self._genai.GenerationConfig()
        config.max_new_tokens = tokens
        config.ignore_eos = True
        self._numbers += 1
        ids = self._openvino.Tensor(numpy.array([prompt], dtype=numpy.int64))
        return self._pipe.add_request(self._numbers, ids, config), asked, []


def main() -> None:
    folder, converted, precision, threads = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    loop = Loop(Path(folder), Path(converted), precision, int(threads))
    for line in sys.stdin:
        print(json.dumps(loop.run(**json.loads(line))), file=answers)


if __name__ == "__main__":
    main()
