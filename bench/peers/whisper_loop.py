"""transformers' speech recognition pipeline in a loop.

`python -m bench.peers.whisper_loop FOLDER DTYPE TOKENS CLIP …` reads a number of clips per line. It
answers with the seconds that they took. It runs in a separate environment.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.peers.answering import answer
from bench.peers.asking import pipeline_of, samples


def main() -> None:
    folder, dtype, tokens, *paths = sys.argv[1:]
    options = {"task": "transcribe", "num_beams": 1, "max_new_tokens": int(tokens)}

    def loaded() -> Callable[[int], float]:
        import transformers

        transformers.utils.logging.set_verbosity_error()
        pipe: Any = pipeline_of(folder, "automatic-speech-recognition", dtype)

        def run(count: int) -> float:
            started = time.perf_counter()
            for path in paths[:count]:
                pipe(samples(Path(path).read_bytes()), generate_kwargs=options)
            return time.perf_counter() - started

        return run

    answer(loaded)


if __name__ == "__main__":
    main()
