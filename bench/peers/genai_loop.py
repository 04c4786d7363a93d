"""Upper limit for chats: OpenVINO GenAI's continuous batching in a loop, without a server.

`python -m bench.peers.genai_loop MODEL CONVERTED PRECISION THREADS` reads JSON lines `{"prompts":
[[token, …], …], "clients": N, "tokens": M, "most_s": T}`. It answers each with `{"seconds": s,
"answers": [[asked, [came, …]], …]}`. It runs in a separate environment.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy

from bench.peers.answering import answer

CACHE_GIB = 2


class Loop:
    def __init__(self, folder: Path, converted: Path, precision: str, threads: int) -> None:
        import openvino
        import openvino_genai
        import openvino_tokenizers
        import transformers

        self._openvino: Any = openvino
        self._genai: Any = openvino_genai
        tokenizers: Any = openvino_tokenizers
        schedule = self._genai.SchedulerConfig()
        schedule.cache_size = CACHE_GIB
        # Same options as Stoker's.
        options = {
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": precision,
            "KV_CACHE_PRECISION": precision,
            "PERFORMANCE_HINT": "LATENCY",
        }
        words: Any = transformers.AutoTokenizer.from_pretrained(folder)
        made = tokenizers.convert_tokenizer(words, with_detokenizer=True)
        with TemporaryDirectory() as place:
            # GenAI expects the file names of optimum-intel.
            for suffix in ("xml", "bin"):
                link = Path(place, f"openvino_model.{suffix}")
                link.symlink_to(converted / f"language_model.{suffix}")
            for name in ("config.json", "generation_config.json"):
                Path(place, name).symlink_to(folder / name)
            for name, model in zip(("tokenizer", "detokenizer"), made, strict=True):
                openvino.save_model(model, Path(place, f"openvino_{name}.xml"))
            self._pipe = self._genai.ContinuousBatchingPipeline(place, schedule, "CPU", options)
        self._numbers = 0

    def run(
        self, prompts: list[list[int]], clients: int, tokens: int, most_s: float
    ) -> dict[str, Any]:
        """Keeps `clients` prompts in the loop until all have their tokens."""
        waiting = [prompts[number::clients] for number in range(clients)]
        answers: list[tuple[float, list[float]]] = []
        running: dict[int, tuple[Any, float, list[float]]] = {}
        started = time.perf_counter()
        for number in range(clients):
            running[number] = self._begun(waiting[number].pop(0), tokens)
        while running:
            self._pipe.step()
            for number, (handle, sent_at, came) in list(running.items()):
                if handle.can_read():
                    now = time.perf_counter()
                    for output in handle.read().values():
                        came.extend(now for _ in output.generated_ids)
                if len(came) < tokens:
                    continue
                answers.append((sent_at, came))
                del running[number]
                if waiting[number] and time.perf_counter() - started < most_s:
                    running[number] = self._begun(waiting[number].pop(0), tokens)
        seconds = max(came[-1] for _, came in answers) - started
        return {"seconds": seconds, "answers": answers}

    def _begun(self, prompt: list[int], tokens: int) -> tuple[Any, float, list[float]]:
        sent_at = time.perf_counter()
        config = self._genai.GenerationConfig()
        config.max_new_tokens = tokens
        config.ignore_eos = True
        self._numbers += 1
        ids = self._openvino.Tensor(numpy.array([prompt], dtype=numpy.int64))
        return self._pipe.add_request(self._numbers, ids, config), sent_at, []


def main() -> None:
    folder, converted, precision, threads = sys.argv[1:]

    def loaded() -> Callable[[Any], Any]:
        loop = Loop(Path(folder), Path(converted), precision, int(threads))
        return lambda load_task: loop.run(**load_task)

    answer(loaded)


if __name__ == "__main__":
    main()
