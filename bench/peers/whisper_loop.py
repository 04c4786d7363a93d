"""transformers' speech recognition pipeline, called in a loop.

`python -m bench.peers.whisper_loop FOLDER THREADS CLIP …` says `ready`, then reads a number a line
and answers with the seconds that so many clips took.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

from bench.models import WHISPER_TOKENS


def main() -> None:
    folder, threads, *paths = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    import torch
    import transformers

    from stoker.media import audio
    from stoker.media.limits import MediaLimits

    transformers.utils.logging.set_verbosity_error()
    torch.set_num_threads(int(threads))
    pipe: Any = transformers.pipeline("automatic-speech-recognition", model=folder, device="cpu")
    options = {"task": "transcribe", "num_beams": 1, "max_new_tokens": WHISPER_TOKENS}
    print("ready", file=answers)
    for line in sys.stdin:
        started = time.perf_counter()
        for path in paths[: int(line)]:
            samples = audio.decode(Path(path).read_bytes(), 16_000, MediaLimits())
            pipe(samples, generate_kwargs=options)
        print(time.perf_counter() - started, file=answers)


if __name__ == "__main__":
    main()
