"""diffusers in a loop.

`python -m bench.peers.diffusers_loop FOLDER DTYPE STEPS` reads lists of prompts, one per line. It
answers with the seconds needed to draw an image of each. It runs in a separate environment.
"""

import io
import sys
import time
from collections.abc import Callable
from typing import Any

from bench.peers.answering import answer


def main() -> None:
    folder, dtype, steps = sys.argv[1:]

    def loaded() -> Callable[[list[str]], float]:
        import diffusers
        import torch

        library: Any = diffusers
        pipe = library.DiffusionPipeline.from_pretrained(folder, torch_dtype=getattr(torch, dtype))
        pipe.set_progress_bar_config(disable=True)

        def run(prompts: list[str]) -> float:
            started = time.perf_counter()
            for prompt in prompts:
                picture = pipe(prompt, num_inference_steps=int(steps)).images[0]
                picture.save(io.BytesIO(), "PNG")
            return time.perf_counter() - started

        return run

    answer(loaded)


if __name__ == "__main__":
    main()
