"""Compares language models' answers in a replica and in transformers: `writers.py FOLDER KIND …`.

Runs in the users' interpreter, which has no pytest. Prints a line of JSON for each kind: its name,
and how its answer differs, or an empty text if it does not.
"""

import json
import sys
from pathlib import Path

import torch

from stoker.models.llm.engines.torch import TorchRunner, load
from stoker.models.llm.scheduler import Scheduler
from tests.llm.support import GREEDY, VOCABULARY, Answers, generated, submission
from tests.support import causal

PROMPT = [5 + 37 * place % (VOCABULARY - 5) for place in range(20)]


def difference(kind: str, folder: Path) -> str:
    causal.model(kind).save_pretrained(folder)
    model = load(folder, torch.float32, torch.device("cpu"))
    model.generation_config.eos_token_id = None
    expected = generated(model, PROMPT, GREEDY.max_tokens or 0)
    answers = Answers(Scheduler(TorchRunner(model, threads=1, cache_bytes=1 << 24), ()))
    answers.scheduler.submit(submission(0, PROMPT, GREEDY))
    answers.drain()
    answer = answers.errors.get(0) or answers.tokens[0]
    return "" if answer == expected else f"{answer} instead of {expected}"


def main(folder: str, *kinds: str) -> None:
    for kind in kinds:
        try:
            outcome = difference(kind, Path(folder) / kind)
        except Exception as error:
            outcome = repr(error)
        print(json.dumps([kind, outcome]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
