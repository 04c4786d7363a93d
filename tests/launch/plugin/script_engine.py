"""Engine for language models that writes the answers of a script, token by token.

Stoker's scheduler draws each token from the logits of this engine. Prompts, sampling, grammars,
parsers and streams are Stoker's own.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import transformers

from stoker.plugin_api import Chunk, Execution, LanguageModel, Progress, ReplicaSpec, Scheduler

ANSWER = "<|im_start|>assistant"
"""Begins an answer in the prompts of ChatML."""
UNWANTED = -100.0


class _ScriptRunner:
    """A `Runner` that knows the answer of each sequence when it is admitted."""

    sharing: Any = None
    adapters: Any = None
    can_retract = False
    usage = 0.0

    def __init__(self, tokenizer: Any, script: Sequence[Any], config: Any) -> None:
        self.name = "script"
        self.step_tokens: int | None = 8192
        self.max_length = config.max_position_embeddings
        self.vocabulary = config.vocab_size
        self._tokenizer = tokenizer
        self._script = [step for step in script if not step["aside"]]
        self._asides = [step for step in script if step["aside"]]
        self._answers: dict[int, tuple[int, list[int]]] = {}
        """Maps a sequence to the length of its prompt and the tokens of its answer."""

    def enter_thread(self) -> None: ...

    def admit(
        self,
        identifier: int,
        tokens: Sequence[int],
        media: Any = None,
        *,
        fresh: bool = False,
        adapter: Any = None,
    ) -> int | None:
        answer = self._tokenizer.encode(self._answer(tokens), add_special_tokens=False)
        self._answers[identifier] = (len(tokens), [*answer, self._tokenizer.eos_token_id])
        return 0

    def _answer(self, tokens: Sequence[int]) -> str:
        """Returns the answer to a prompt: the step after as many answers as the prompt has."""
        prompt: str = self._tokenizer.decode(tokens)
        for step in self._asides:
            if match := re.search(step["when"], prompt):
                return match.expand(step["say"])
        turns = prompt.split(ANSWER)[:-1]
        if len(turns) > len(self._script):
            return "The script has no more steps."
        step = self._script[len(turns) - 1]
        match = re.search(step["when"], turns[-1])
        return match.expand(step["say"]) if match else f"No '{step['when']}' in: {turns[-1]}"

    def reserve(self, identifier: int, length: int) -> bool:
        return True

    def outgrown(self, identifier: int, length: int) -> bool:
        return False

    def forward(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        rows = [token for chunk in chunks for token in self._next(chunk)]
        logits = torch.full((len(rows), self.vocabulary), UNWANTED)
        for row, token in enumerate(rows):
            logits[row, token] = 0.0
        return logits

    def _next(self, chunk: Chunk) -> list[int]:
        """Returns the likeliest token after each of the chunk's rows."""
        length, answer = self._answers[chunk.id]
        ends = range(chunk.start + len(chunk.tokens) - chunk.rows, chunk.start + len(chunk.tokens))
        places = [max(end + 1 - length, 0) for end in ends]
        return [answer[min(place, len(answer) - 1)] for place in places]

    def retract(self, identifier: int, length: int) -> None: ...

    def rest(self) -> bool:
        return False

    def release(self, identifier: int) -> None:
        del self._answers[identifier]


class ScriptEngine:
    sharing = None
    convertible = False
    adapters = None

    def __init__(self, spec: ReplicaSpec, progress: Progress) -> None:
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            spec.model_dir, local_files_only=True
        )
        config = transformers.AutoConfig.from_pretrained(spec.model_dir, local_files_only=True)
        self._runner = _ScriptRunner(tokenizer, spec.options.get("script") or [], config)
        self.max_length = self._runner.max_length
        self.vocabulary = self._runner.vocabulary

    def begin(self, ends: Iterable[int]) -> LanguageModel:
        return Scheduler(self._runner, ends)

    def prepare(self, execution: Execution) -> Callable[[], None]:
        return lambda: None
