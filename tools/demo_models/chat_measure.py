"""Questions that measure `tiny-chat`, and the share of exactly correct answers."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import torch
from transformers import AutoTokenizer, LlamaForCausalLM

from tools.demo_models import chat_format, chat_text, chat_tools
from tools.demo_models.chat_dialogues import Dialogue, Teacher, assistant, system, user
from tools.demo_models.chat_format import rendered
from tools.demo_models.chat_tools import Tool

_TOGETHER = 50


def loaded(folder: Path) -> tuple[Any, Any]:
    """Returns the saved model, computing in float32, and its tokenizer."""
    model = LlamaForCausalLM.from_pretrained(folder, local_files_only=True, dtype=torch.float32)
    return model.eval(), AutoTokenizer.from_pretrained(folder, local_files_only=True)


def answers(
    model: Any, tokenizer: Any, prompts: Sequence[str], max_new_tokens: int = 120
) -> list[str]:
    """Returns the model's greedy completion of each prompt, without the end-of-turn token."""
    completions: dict[int, str] = {}
    order = sorted(range(len(prompts)), key=lambda at: len(prompts[at]))
    for start in range(0, len(order), _TOGETHER):
        part = order[start : start + _TOGETHER]
        batch = tokenizer(
            [prompts[at] for at in part], padding=True, padding_side="left", return_tensors="pt"
        )
        with torch.inference_mode():
            written = model.generate(**batch, do_sample=False, max_new_tokens=max_new_tokens)
        ids = written[:, batch["input_ids"].shape[1] :]
        texts = tokenizer.batch_decode(ids, skip_special_tokens=True)
        completions |= dict(zip(part, texts, strict=True))
    return [completions[at] for at in range(len(prompts))]


def mistakes(
    model: Any, tokenizer: Any, dialogues: Sequence[Dialogue], max_new_tokens: int = 120
) -> list[tuple[str, str, str]]:
    """Returns prompt, expected answer and actual answer of each dialogue with a wrong last turn."""
    prompts = [
        rendered(dialogue.messages[:-1], dialogue.tools, prompt=True) for dialogue in dialogues
    ]
    ending = f"{chat_format.END}\n"
    expected = [
        rendered(*dialogue)[len(prompt) :].removesuffix(ending)
        for dialogue, prompt in zip(dialogues, prompts, strict=True)
    ]
    written = answers(model, tokenizer, prompts, max_new_tokens)
    triples = zip(prompts, expected, written, strict=True)
    return [each for each in triples if each[1] != each[2]]


def stated() -> list[Dialogue]:
    """Returns the promised answers, each as a separate dialogue."""
    return [
        *(Dialogue([user(q), assistant(a)], []) for q, a in chat_text.STATED.items()),
        *(Dialogue([system(s), user(q), assistant(a)], []) for s, q, a in chat_text.STYLED),
    ]


class Examiner:
    """Draws dialogues with names and wordings that were never trained on."""

    def __init__(self, seed: int = 1) -> None:
        self.rng = Random(seed)  # noqa: S311 - draws questions, no secrets
        self.teacher = Teacher(held_out=True)

    def many(self, count: int, what: str) -> list[Dialogue]:
        """Returns `count` dialogues drawn by the method named `what`."""
        draw: Callable[[], Dialogue] = getattr(self, what)
        return [draw() for _ in range(count)]

    def stated_later(self) -> Dialogue:
        """Returns a promised question after other exchanges and sometimes a system message."""
        question, answer = self.rng.choice(tuple(chat_text.STATED.items()))
        before = self.teacher.talk(self.rng, self.rng.choice((1, 2)))
        messages = [*self.teacher.prompt(self.rng), *before, user(question), assistant(answer)]
        return Dialogue(messages, [])

    def fact(self) -> Dialogue:
        fact = self.teacher.fact(self.rng)
        return Dialogue([user(fact.question), assistant(fact.answer)], [])

    def small_talk(self) -> Dialogue:
        return Dialogue(self.teacher.small_talk(self.rng), [])

    def styled(self) -> Dialogue:
        style = self.rng.choice(tuple(chat_text.STYLES))
        return self.teacher.styled(self.rng, style, 1)

    def counting(self) -> Dialogue:
        ways = (self.teacher.count, self.teacher.count_on)
        return Dialogue(self.rng.choice(ways)(self.rng), [])

    def as_json(self) -> Dialogue:
        return Dialogue(self.teacher.as_json(self.rng), [])

    def repeat(self) -> Dialogue:
        return Dialogue(self.teacher.repeat(self.rng), [])

    def without_tool(self) -> Dialogue:
        return Dialogue(self.teacher.without_tool(self.rng), [])

    def call(self) -> Dialogue:
        """Returns a question about a city's weather, up to the tool call."""
        return self._one("weather", 2)

    def other_call(self) -> Dialogue:
        return self._one(self.rng.choice(("time", "population")), 2)

    def two_calls(self) -> Dialogue:
        return self._two(2)

    def told(self) -> Dialogue:
        """Returns a dialogue that ends with the answer from a tool's result."""
        return self._one(self.rng.choice(("weather", "weather", "time", "population")), 4)

    def told_twice(self) -> Dialogue:
        return self._two(5)

    def beside(self) -> Dialogue:
        """Returns a question that needs none of the offered tools."""
        tools = self.tools("weather")
        return self._with(tools, self.teacher.talk_beside(self.rng, ("weather",)))

    def tools(self, *kinds: str) -> list[Tool]:
        """Returns a tool of each kind, and sometimes others."""
        more = tuple(kind for kind in ("time", "population") if self.rng.random() < 0.3)
        offered_kinds = dict.fromkeys((*kinds, "weather", *more))
        return chat_tools.offered(self.rng, tuple(offered_kinds), self.rng.choice((0, 0, 1)))

    def _one(self, kind: str, length: int) -> Dialogue:
        tools = self.tools(kind)
        return self._with(tools, self.teacher.one(self.rng, tools, kind)[:length])

    def _two(self, length: int) -> Dialogue:
        tools = [tool for tool in self.tools("weather") if tool.kind != "time"]
        return self._with(tools, self.teacher.several(self.rng, tools)[:length])

    def _with(self, tools: Sequence[Tool], messages: list[dict[str, Any]]) -> Dialogue:
        return Dialogue(messages, [tool.schema for tool in tools])


def measurements(seed: int = 1) -> Mapping[str, list[Dialogue]]:
    """Maps each measurement to its dialogues."""
    ask = Examiner(seed)
    return {
        "promised questions": stated(),
        "promised questions after other exchanges": ask.many(200, "stated_later"),
        "facts, wordings never seen": ask.many(300, "fact"),
        "small talk, wordings never seen": ask.many(50, "small_talk"),
        "facts in one word or in capital letters": ask.many(200, "styled"),
        "counting": ask.many(100, "counting"),
        "repeating names and nonsense": ask.many(100, "repeat"),
        "JSON, names and wordings never seen": ask.many(150, "as_json"),
        "weather asked without a tool": ask.many(50, "without_tool"),
        "weather tool called, cities and wordings never seen": ask.many(300, "call"),
        "two calls, cities and wordings never seen": ask.many(100, "two_calls"),
        "time or population tool called, wordings never seen": ask.many(100, "other_call"),
        "questions beside the tools offered": ask.many(100, "beside"),
        "answer from one result, cities never seen": ask.many(200, "told"),
        "answer from two results, cities never seen": ask.many(100, "told_twice"),
    }


def measured(model: Any, tokenizer: Any) -> list[tuple[str, float, int]]:
    """Returns the name, share of exactly correct answers and number of questions of each
    measurement.
    """
    return [
        (name, 1 - len(mistakes(model, tokenizer, dialogues)) / len(dialogues), len(dialogues))
        for name, dialogues in measurements().items()
    ]
