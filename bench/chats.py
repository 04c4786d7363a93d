"""Distinct chats with an exact number of tokens for benchmarks."""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from bench import streams
from bench.chat_models import chat_tokenizer
from bench.samples import SEED, chat_words
from bench.service import Service
from bench.streams import Load
from stoker.wire.protocol import Execution

PATH = "/v1/chat/completions"
PIPELINE = "text-generation"
PROMPT_TOKENS = 142
ANSWER_TOKENS = 64
CHECK_S = 240
UNGUESSED = {"speculation": "off"}
"""`config` of a model with random weights. Such a model repeats itself without end, so nearly all
of its answers would be guessed, unlike those of a useful model.
"""
DRAWN = 32
"""Number of chats that a model answers until it has its final configuration."""


@dataclass(frozen=True)
class Chat:
    content: str
    tokens: list[int]
    """Tokens of the templated chat."""


class Chats:
    """Draws chats. The same seed yields the same chats in the same order."""

    def __init__(self, seed: int = SEED) -> None:
        self._random = random.Random(seed)
        self._words = chat_words()
        self._tokenizer = chat_tokenizer()
        self._frame = len(self.of("")) - len(self._tokenizer("")["input_ids"])

    def draw(self, count: int, tokens: int = PROMPT_TOKENS, prefix: str = "") -> list[Chat]:
        """Returns chats with `tokens` tokens each, including the template. With `prefix`, all begin
        with it.
        """
        begin = prefix.split()
        drawn: list[Chat] = []
        for _ in range(count):
            words = self.words(tokens - self._frame - len(begin))
            content = " ".join([*begin, *words])
            drawn.append(Chat(content, self.of(content)))
        if any(len(chat.tokens) != tokens for chat in drawn):
            raise RuntimeError("a chat has another number of tokens than was asked for")
        return drawn

    def words(self, count: int) -> list[str]:
        """Returns random words of one token each."""
        return self._random.choices(self._words, k=count)

    def of(self, content: str) -> list[int]:
        messages = [{"role": "user", "content": content}]
        made = self._tokenizer.apply_chat_template(messages, add_generation_prompt=True)
        return list(made["input_ids"])


@dataclass(frozen=True)
class Endpoint:
    """Address, key and fixed request fields of a served model."""

    base_url: str
    key: str
    always: Mapping[str, Any]
    """Additional fields of every request."""

    def load(self, chats: Sequence[Chat], clients: int, tokens: int = ANSWER_TOKENS) -> Load:
        bodies = [json.dumps(self._body(chat, tokens, stream=True)).encode() for chat in chats]
        return streams.load(self.base_url + PATH, self.key, bodies, clients, tokens)

    def bodies(self, chats: Sequence[Chat]) -> list[bytes]:
        """Returns the request bodies of the chats, without streaming."""
        return [
            json.dumps(self._body(chat, ANSWER_TOKENS, stream=False)).encode() for chat in chats
        ]

    def check(self, chat: Chat) -> None:
        """Raises `RuntimeError` if the server counts the tokens of the prompt or the answer
        differently.
        """
        body = self._body(chat, ANSWER_TOKENS, stream=False)
        headers = {"authorization": f"Bearer {self.key}"} if self.key else {}
        try:
            answer = httpx.post(
                self.base_url + PATH, json=body, headers=headers, timeout=CHECK_S, verify=False
            )
            usage = answer.raise_for_status().json()["usage"]
        except httpx.HTTPError as error:
            raise RuntimeError(f"a first chat failed: {error}") from error
        if usage["prompt_tokens"] != len(chat.tokens):
            raise RuntimeError(f"the prompt has {len(chat.tokens)} tokens, and not as in {usage}")
        if usage["completion_tokens"] != ANSWER_TOKENS:
            raise RuntimeError(f"the answer has not {ANSWER_TOKENS} tokens: {usage}")

    def _body(self, chat: Chat, tokens: int, *, stream: bool) -> dict[str, Any]:
        return {
            "messages": [{"role": "user", "content": chat.content}],
            "max_tokens": tokens,
            "temperature": 0,
            "stream": stream,
            **self.always,
        }


def ours(service: Service, model: str) -> Endpoint:
    return Endpoint(service.base_url, service.key, {"model": model, "ignore_eos": True})


def settled(
    service: Service, folder: Path, model: str, chats: Chats, **wish: Any
) -> Execution | None:
    """Deploys the model as hot and sends work until it has its final configuration. Returns the
    conversion that it uses, if any.
    """
    wish = {"config": UNGUESSED, **wish}
    deployment = service.deploy(folder, model, PIPELINE, readiness="hot", **wish)
    return service.settle(deployment, PATH, ours(service, model).bodies(chats.draw(DRAWN)))
