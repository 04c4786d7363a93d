"""Tiny language models with random weights, and a toy model that reveals the contents of a
cache.
"""

import random
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from stoker.models.chat.answers.answer_events import CallArguments, CallBegun, Event, Finished, Text
from stoker.models.llm import scheduler as scheduling
from stoker.models.llm.blocks import BlockCache
from stoker.models.llm.interface import Logprob, Output, Submission
from stoker.models.llm.lookup import Lookup
from stoker.models.llm.scheduler import Chunk, Scheduler
from stoker.models.llm.speculation import Speculation
from stoker.wire.generation_request import Sampling

if TYPE_CHECKING:
    # Also runs in users' environments, which lack pytest.
    import pytest

library: Any = transformers

TEXT = (
    "The model answers what it was asked: the weather in Paris is 21 degrees, and the river is "
    'cold. {"name": "get_weather", "arguments": {"city": "Paris"}} true false null'
)
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
HERMES = (
    "{% if tools %}<|im_start|>system\n"
    "{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
    "Call them within <tool_call></tool_call>.<|im_end|>\n{% endif %}"
    + CHATML.replace(
        "{{ message.content }}",
        "{{ message.content }}{% for call in message.tool_calls or [] %}\n<tool_call>\n"
        '{"name": {{ call.function.name | tojson }}, '
        '"arguments": {{ call.function.arguments | tojson }}}\n</tool_call>{% endfor %}',
    )
)
TEMPLATES: Mapping[str, str] = {
    "hermes": HERMES,
    "mistral": CHATML + "{# [TOOL_CALLS] #}",
    "llama3": CHATML + '{# {"name": function, "parameters": {}} #}',
    "pythonic": CHATML + "{# [func_name1(params_name1=params_value1)] #}",
}
THINKING = CHATML + "{# <think> </think> #}"
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "[TOOL_CALLS]", "<|python_tag|>")
VOCABULARY = 400
"""Vocabulary size of the models. Larger than the tokenizer's, as with real models."""


def tokenizer(
    template: str | None = HERMES,
    *,
    special: Sequence[str] = SPECIAL,
    added: Sequence[str] = ("<tool_call>", "</tool_call>", "<think>", "</think>"),
) -> Any:
    """Returns a byte-level BPE tokenizer, as used by Qwen and Llama 3. It has tokens for every
    text.

    Args:
        added: tokens that are never split but count as text, as Qwen's `<tool_call>`.
    """
    made: Any = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    made.train_from_iterator([TEXT] * 4, trainer)
    made.add_special_tokens([*special])
    made.add_tokens([AddedToken(token, normalized=False) for token in added])
    return library.PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token="<|im_end|>", chat_template=template
    )


def tiny_llama(folder: Path, *, positions: int = 320, head_size: int = 16) -> Path:
    """Saves a Llama of two layers with its tokenizer, as `save_pretrained` does."""
    transformers.set_seed(1)
    config = library.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=4 * head_size,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=positions,
        # Wide enough that answers depend on the whole prompt and no two tokens tie.
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = library.LlamaForCausalLM(config).eval()
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def generated(model: Any, prompt: Sequence[int], count: int) -> list[int]:
    """Returns the greedy answer of transformers itself."""
    with torch.inference_mode():
        token_ids = model.generate(
            torch.tensor([list(prompt)]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=count,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    return token_ids[0, len(prompt) :].tolist()


GREEDY = Sampling(
    temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, repetition_penalty=1.0, max_tokens=8
)


def submission(
    identifier: int, prompt: Iterable[int], sampling: Sampling = GREEDY, **more: Any
) -> Submission:
    return Submission(id=identifier, prompt=list(prompt), sampling=sampling, **more)


class Answers:
    """Collects a scheduler's outputs and asserts its guarantees for each output."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.tokens: dict[int, list[int]] = {}
        self.finish: dict[int, str] = {}
        self.errors: dict[int, str] = {}
        self.cached: dict[int, int] = {}
        self.prompts: dict[int, list[Logprob]] = {}
        """Reported log probabilities of each prompt's tokens."""
        self.order: list[int] = []
        """Sequences in the order in which they ended."""

    def step(self) -> list[Output]:
        outputs = self.scheduler.step()
        for output in outputs:
            self.note(output)
        return outputs

    def note(self, output: Output) -> None:
        assert output.id not in self.finish, "an output after the last"
        assert output.id not in self.errors, "an output after an error"
        first = output.id not in self.tokens
        assert first or output.cached == 0, "the cached tokens are told twice"
        if output.prompt:
            assert not self.tokens.get(output.id), "the prompt is told after what follows it"
            self.prompts.setdefault(output.id, []).extend(output.prompt)
        self.tokens.setdefault(output.id, []).extend(output.tokens)
        self.cached[output.id] = self.cached.get(output.id, 0) + output.cached
        if output.error:
            self.errors[output.id] = output.error
        if output.finish:
            self.finish[output.id] = output.finish
        if output.finish or output.error:
            self.order.append(output.id)

    def drain(self, steps: int = 5000) -> "Answers":
        """Steps until nothing runs."""
        for _ in range(steps):
            if not self.scheduler.running:
                return self
            self.step()
        raise AssertionError(f"{self.scheduler.running} sequences still run")


_ROWS = torch.randn(97, 50, generator=torch.Generator().manual_seed(3)) * 3
"""The toy's rows of logits. All preceding tokens determine the next row."""


Toy = Callable[[Sequence[int]], torch.Tensor]
"""Returns the logits after the tokens."""


def toy_logits(tokens: Sequence[int]) -> torch.Tensor:
    return _ROWS[zlib.crc32(repr(list(tokens)).encode()) % len(_ROWS)]


def forgetful_logits(tokens: Sequence[int]) -> torch.Tensor:
    """Returns logits that depend on the last two tokens only. A repeated passage continues in the
    same way.
    """
    return toy_logits(tokens[-2:])


def wavering_logits(tokens: Sequence[int]) -> torch.Tensor:
    """Returns logits that depend mostly on the last token, and a little on all tokens."""
    return toy_logits(tokens[-1:]) + 0.15 * toy_logits(tokens)


def toy_answer(
    prompt: Sequence[int],
    count: int,
    *,
    ends: Iterable[int] = (),
    max_length: int = 10**6,
    logits: Toy = toy_logits,
) -> tuple[list[int], str]:
    """Returns the toy's greedy answer and the reason for its end."""
    tokens = list(prompt)
    stops = set(ends)
    while True:
        token = int(logits(tokens).argmax())
        if token in stops:
            return tokens[len(prompt) :], "stop"
        tokens.append(token)
        if len(tokens) - len(prompt) == count or len(tokens) >= max_length:
            return tokens[len(prompt) :], "length"


class ToyRunner:
    """A `Runner` with tokens as its keys and values, in blocks that may be shared.

    The logits are computed from the contents of the blocks, so a wrong block gives a wrong answer.
    """

    name = "toy"
    vocabulary = 50
    can_retract = True
    step_tokens: int | None = None

    def __init__(
        self,
        blocks: int = 64,
        *,
        max_length: int = 64,
        block_tokens: int = 4,
        logits: Toy = toy_logits,
    ) -> None:
        self.logits = logits
        self.guessed: dict[int, list[int]] = {}
        """Maps a sequence to its draft that is not verified yet."""
        self.max_length = max_length
        self.blocks = blocks
        self.cache = BlockCache(blocks, block_tokens)
        self.memory = [[-1] * block_tokens for _ in range(blocks)]
        self.length: dict[int, int] = {}
        """Maps a sequence to its number of computed tokens."""
        self.steps: list[list[Chunk]] = []
        self.has_device = True
        self.spoil: Callable[[int, torch.Tensor], torch.Tensor] = lambda _, row: row

    def rest(self) -> bool:
        return False

    def is_usable(self) -> bool:
        return self.has_device

    @property
    def usage(self) -> float:
        return self.cache.usage

    def enter_thread(self) -> None: ...

    def admit(
        self, identifier: int, tokens: Sequence[int], media: Any = None, *, fresh: bool = False
    ) -> int | None:
        assert media is None
        assert identifier not in self.length, "a sequence is admitted twice"
        cached = self.cache.admit(identifier, tokens, fresh=fresh)
        if cached is not None:
            assert 0 <= cached < len(tokens)
            self.length[identifier] = cached
            assert self.read(identifier) == list(tokens[:cached]), "shared blocks hold other tokens"
        return cached

    def reserve(self, identifier: int, length: int) -> bool:
        assert length <= self.max_length
        assert not self.guessed.get(identifier), "nobody has told what its guess was worth"
        return self.cache.reserve(identifier, length)

    def outgrown(self, identifier: int, length: int) -> bool:
        return False

    def retract(self, identifier: int, length: int) -> None:
        draft = self.guessed.pop(identifier)
        assert 0 <= self.length[identifier] - length <= len(draft), "more is dropped than guessed"
        self.length[identifier] = length
        self.cache.computed(identifier, length)

    def release(self, identifier: int) -> None:
        self.length.pop(identifier, None)
        self.guessed.pop(identifier, None)
        self.cache.release(identifier)

    def read(self, identifier: int) -> list[int]:
        table = self.cache.table(identifier)
        tokens = [token for block in table for token in self.memory[block]]
        return tokens[: self.length[identifier]]

    def forward(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        self.steps.append(list(chunks))
        assert len({chunk.id for chunk in chunks}) == len(chunks) > 0
        assert 0 < sum(len(chunk.tokens) for chunk in chunks) <= scheduling.STEP_TOKENS
        size = self.cache.block_tokens
        for chunk in chunks:
            assert chunk.start == self.length[chunk.id], "a chunk does not begin at the last's end"
            table = self.cache.table(chunk.id)
            for place, token in enumerate(chunk.tokens, start=chunk.start):
                block = table[place // size]
                holders = [
                    sequence for sequence in self.length if block in self.cache.table(sequence)
                ]
                assert holders == [chunk.id], "a shared block is written to"
                self.memory[block][place % size] = token
            self.length[chunk.id] += len(chunk.tokens)
        rows: list[torch.Tensor] = []
        for chunk in chunks:
            tokens = self.read(chunk.id)
            for end in range(len(tokens) - chunk.rows + 1, len(tokens) + 1):
                rows.append(self.spoil(chunk.id, self.logits(tokens[:end])))
        for chunk in chunks:
            assert chunk.certain == self.length[chunk.id] - chunk.draft
            self.cache.computed(chunk.id, chunk.certain)
            if chunk.draft:
                assert chunk.sampled
                self.guessed[chunk.id] = list(chunk.tokens[-chunk.draft :])
        return torch.stack(rows) if rows else torch.empty(0, self.vocabulary)


@dataclass
class Called:
    index: int
    id: str
    name: str
    arguments: str = ""


@dataclass
class Joined:
    """Text, reasoning and calls that an answer's events add up to."""

    text: str = ""
    reasoning: str = ""
    calls: list[Called] = field(default_factory=list[Called])

    @property
    def plain(self) -> tuple[str, str, list[tuple[str, str]]]:
        """The answer without the calls' ids, which are random."""
        return self.text, self.reasoning, [(call.name, call.arguments) for call in self.calls]


def joined(events: Iterable[Event]) -> Joined:
    """Adds events up. Asserts that each call begins once, in turn, before its arguments."""
    answer = Joined()
    for event in events:
        match event:
            case Text():
                if event.reasoning:
                    answer.reasoning += event.text
                else:
                    answer.text += event.text
            case CallBegun():
                assert event.index == len(answer.calls)
                assert event.id not in [call.id for call in answer.calls]
                answer.calls.append(Called(event.index, event.id, event.name))
            case CallArguments():
                answer.calls[event.index].arguments += event.text
                assert event.index == len(answer.calls) - 1
            case Finished():
                pass
    return answer


def measured() -> Speculation:
    """Returns a `Speculation` for which all passes take equally long, so that any guess may pay."""
    speculation = Speculation()
    for sequences in range(1, 65):
        for width in (sequences, sequences, 16 * sequences, 16 * sequences):
            speculation.passed(sequences, width, 0.0)
    return speculation


@dataclass
class Mix:
    """Parameters of a mix of sequences, and the limits of a scheduler's step."""

    blocks: int
    budget: int
    max_running: int
    seed: int

    def __str__(self) -> str:
        return f"{self.blocks}b-{self.budget}t-{self.max_running}r"


def foretold(monkeypatch: "pytest.MonkeyPatch", texts: Sequence[Sequence[int]], seed: int) -> None:
    """Replaces guesses by the real next tokens, of any length, and often wrong from some token
    on.
    """
    chance = random.Random(seed)

    def guess(self: Lookup, most: int) -> list[int]:
        so_far = list(self._tokens)
        known = next(
            list(full_text) for full_text in texts if list(full_text[: len(so_far)]) == so_far
        )
        guessed = known[len(so_far) :][: min(most, chance.randint(0, 6))]
        if guessed and chance.random() < 0.6:
            guessed[chance.randrange(len(guessed))] = chance.randrange(VOCABULARY)
        return guessed

    def likely(self: Lookup, place: int) -> float:
        return 0.99 ** (place + 1)

    monkeypatch.setattr(Lookup, "guess", guess)
    monkeypatch.setattr(Lookup, "chance", likely)
