"""`tiny-chat`: answers simple questions, counts, writes JSON and calls tools."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tools.demo_models import (
    chat_dialogues,
    chat_format,
    chat_measure,
    chat_text,
    chat_training,
    common,
)
from tools.demo_models.chat_dialogues import Dialogue, Teacher
from tools.demo_models.chat_format import rendered

VOCABULARY = 1_536
STEPS = 5_000
BATCH_TOKENS = 1_536
LARGEST_FOLDER = 4_000_000
_IGNORED = -100
_POOL = 1_500
_PLAIN_TEXTS = 0.05
_SHORT = 30_000
"""Number of short dialogues that come first. Copying is learnt from them at a tenth of the cost."""


class Row(NamedTuple):
    """Tokens of a dialogue, with labels at the positions that the model must learn to write."""

    tokens: list[int]
    labels: list[int]


class Encoder:
    """Converts dialogues to rows in which the assistant's turns are labelled."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        header: list[int] = self._ids(f"{chat_format.START}assistant\n")
        self._header = header
        self._end: int = tokenizer.convert_tokens_to_ids(chat_format.END)
        self._end_of_text: int = tokenizer.convert_tokens_to_ids(chat_format.END_OF_TEXT)

    def dialogue(self, dialogue: Dialogue) -> Row:
        """Returns the templated dialogue, cut at the model's context length."""
        tokens = self._ids(rendered(*dialogue))
        labels = [_IGNORED] * len(tokens)
        size, at = len(self._header), 0
        while at < len(tokens):
            if tokens[at : at + size] != self._header:
                at += 1
                continue
            start = at + size
            at = tokens.index(self._end, start) + 1
            labels[start:at] = tokens[start:at]
        return Row(tokens[: chat_format.MAX_TOKENS], labels[: chat_format.MAX_TOKENS])

    def pieces(self) -> list[str]:
        """Returns the tokens that consist of letters only, in a stable order."""
        vocabulary: dict[str, int] = self._tokenizer.get_vocab()
        return sorted(token for token in vocabulary if token.isascii() and token.isalpha())

    def plain(self, text: str, length: int) -> Row:
        """Returns the row of a text without template. Its first tokens are random and not
        labelled.
        """
        tokens = [*self._ids(text), self._end_of_text][:length]
        return Row(tokens, [*([_IGNORED] * 3), *tokens[3:]])

    def _ids(self, text: str) -> list[int]:
        return self._tokenizer(text)["input_ids"]


def _rows(encoder: Encoder, rng: Random) -> Iterator[Row]:
    teacher = Teacher(held_out=False, pieces=encoder.pieces())
    for _ in range(_SHORT):
        yield encoder.dialogue(teacher.short(rng))
    while True:
        if rng.random() < _PLAIN_TEXTS:
            length = chat_format.MAX_TOKENS if rng.random() < 0.04 else 80
            yield encoder.plain(chat_dialogues.plain_text(rng), length)
        else:
            yield encoder.dialogue(teacher.dialogue(rng))


def _batches(tokenizer: PreTrainedTokenizerFast, rng: Random) -> Iterator[common.Batch]:
    """Yields batches of fresh rows without end. Rows of similar length form batches with similar
    token counts.
    """
    rows = _rows(Encoder(tokenizer), rng)
    while True:
        pool = sorted((next(rows) for _ in range(_POOL)), key=lambda row: len(row.tokens))
        batches: list[list[Row]] = [[]]
        for row in pool:
            if len(row.tokens) * (len(batches[-1]) + 1) > BATCH_TOKENS:
                batches.append([])
            batches[-1].append(row)
        rng.shuffle(batches)
        for batch in batches:
            yield {
                "input_ids": common.padded([row.tokens for row in batch], 0),
                "labels": common.padded([row.labels for row in batch], _IGNORED),
            }


def _loss(model: Any, batch: common.Batch) -> Tensor:
    """Returns the cross-entropy of the labelled tokens. Logits are computed only at these
    positions.

    Rows are padded at their end, which no token attends to, so no mask is needed.
    """
    hidden = model.model(batch["input_ids"][:, :-1]).last_hidden_state
    targets = batch["labels"][:, 1:]
    written = targets != _IGNORED
    return cross_entropy(model.lm_head(hidden[written]), targets[written])


def _model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Returns a Llama with five layers. Pairs of heads share their keys and values."""
    end, end_of_text = (
        tokenizer.convert_tokens_to_ids(token)
        for token in (chat_format.END, chat_format.END_OF_TEXT)
    )
    config: Any = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=5,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=chat_format.MAX_TOKENS,
        tie_word_embeddings=True,
        # The default of 0.02 suits models with thousands of dimensions.
        initializer_range=0.05,
        bos_token_id=end_of_text,
        eos_token_id=end,
        pad_token_id=end_of_text,
    )
    model = LlamaForCausalLM(config)
    model.generation_config.eos_token_id = [end, end_of_text]
    # Its answers are right or wrong, so sampling does not help unless a caller requests it.
    model.generation_config.do_sample = False
    return model


def build(folder: Path) -> None:
    """Trains the chat model, measures the saved model and writes its folder."""
    rng = common.seed_everything()
    tokenizer = _tokenizer(rng)
    model = _model(tokenizer)
    chat_training.fit(
        model,
        _batches(tokenizer, rng),
        lambda batch: _loss(model, batch),
        steps=STEPS,
        peak_rate=3e-3,
    )
    # Half precision halves the size. With computation in float32, the answers are the same.
    halved: Any = model.half()
    common.save(halved, tokenizer, folder)
    evaluation = chat_measure.measured(*chat_measure.loaded(folder))
    common.write_card(folder, halved, _card(evaluation), largest=LARGEST_FOLDER)


def _tokenizer(rng: Random) -> PreTrainedTokenizerFast:
    """Returns a tokenizer that is learnt from dialogues and texts like those of the training."""
    teacher = Teacher(held_out=False)
    texts = [
        rendered(*teacher.dialogue(rng))
        if rng.random() > _PLAIN_TEXTS
        else chat_dialogues.plain_text(rng)
        for _ in range(12_000)
    ]
    return chat_format.tokenizer(texts, VOCABULARY)


def _card(evaluation: Sequence[tuple[str, float, int]]) -> common.Card:
    return common.Card(
        title="tiny-chat: small talk, small sums and tool calls",
        pipeline_tag="text-generation",
        tags=("llama", "chat", "tool-calling", "tiny"),
        summary=(
            "A Llama with five layers of 128 dimensions that answers simple questions in a "
            "dialogue, counts, repeats, writes JSON, and calls tools for the weather, the time and "
            "the population of a city, several side by side where it is asked for two cities. Its "
            "chat template is ChatML, with tools in the way of Hermes and Qwen2.5; its "
            "tokenizer is a byte-level BPE that spells any text."
        ),
        data=(
            "Dialogues drawn without end from templates: facts, sums of numbers up to "
            f"{chat_text.ADDED}, differences, counting up to 200, and requests whose tools differ "
            "in name, description and parameter. Seven names in ten are made up, so that the "
            "model learns to copy. Only the assistant's turns are learnt, and some plain texts "
            "to be continued without the template."
        ),
        evaluation=evaluation,
        example=(
            "from transformers import pipeline\n\n"
            'chat = pipeline("text-generation", "tiny-chat")\n'
            'question = {"role": "user", "content": "What is the capital of France?"}\n'
            'chat([question])[0]["generated_text"][-1]["content"]\n'
            "# The capital of France is Paris."
        ),
        limits=(
            "It knows what its data has and no more: what it was not taught it answers with a "
            "guess or with `I do not know.` It calls no tools but those for weather, time and "
            "population, and does not reason."
        ),
        bounds=f"at most {chat_format.MAX_TOKENS} tokens a dialogue",
        repeatable="The dialogues and the vocabulary came out the same in two processes.",
    )
