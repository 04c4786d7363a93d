# ruff: noqa: RUF001 (marks of models that are written with unusual characters)
"""Calls of 70 public chat templates are rendered, parsed, streamed, admitted and rendered again."""

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import jinja2
import pytest
import torch

from stoker.models.chat.answers.answer_events import CallArguments, CallBegun
from stoker.models.chat.answers.probing import (
    TOOLS,
    Case,
    FormatChoice,
    Probe,
    Reading,
    Rendered,
    ends_of_reasoning,
    is_read,
    read,
    reader_of,
)
from stoker.models.chat.forms.grammar import Grammars
from stoker.models.chat.prompts import earlier_calls
from stoker.models.chat.prompts.history import fitted, without_later_system
from stoker.models.chat.prompts.rendering import Renderer, TemplateDataError
from stoker.models.chat.prompts.templates import ChatTemplate
from stoker.wire.generation_request import Tools, as_text
from tests.llm.support import joined, tokenizer
from tools.chat_templates import FOLDER, PAGE, WHY, Rendering, chosen, page, templates

TEMPLATES = templates()
pytestmark = pytest.mark.skipif(
    not TEMPLATES, reason=f"{FOLDER} has no chat templates: `make chat-templates` unpacks them"
)
PROVEN = [name for name in TEMPLATES if chosen(name).is_proven]
WITHOUT_CALLS = {
    # These templates accept no tools.
    *("HuggingFaceTB-SmolLM3-3B", "google-gemma-2-2b-it", "llama-cpp-rwkv-world"),
    "microsoft-Phi-3.5-mini-instruct",
    # These templates omit calls, or refuse every message.
    *("LFM2-8B-A1B", "LFM2.5-Instruct", "deepseek-ai-DeepSeek-R1-Distill-Llama-8B"),
    *("Kimi-K2-Instruct", "Kimi-K2-Thinking", "fireworks-ai-llama-3-firefunction-v2"),
    *("ibm-granite-granite-3.3-2B-Instruct", "llama-cpp-deepseek-r1"),
}
AWKWARD = [
    *("a \"q\" 's'", "line\nline\n", " lead", "\nlead newline", "</parameter>", "<parameter=x>v"),
    *("a\n</parameter>\nb", "a</arg_value>b", "</function>", "a</tool_call>b", '{"a": 1}', "[1]"),
    *("5", "true", "null", "1e5", "東京 😀 é", "\\n", "\\", "]", "}", "", " ", "```", "<b>; {"),
]
UNWRITABLE = {
    # This template quotes texts without escaping them.
    ("LFM2.5-8B-A1B", "a \"q\" 's'"),
    ("LFM2.5-8B-A1B", "\\n"),
    ("LFM2.5-8B-A1B", "\\"),
}
MARKS = re.compile(
    r"<\|[^|<>\n]{1,40}\|>|<｜[^｜<>\n]{1,40}｜>|\[[A-Z_]{3,20}\]|</?think>|</?arg_(?:key|value)>"
    r'|(?<!\[)</?tool_call>|<\|"\|>|<tool_call\|>|<\|tool_call>|<\|channel>|<channel\|>'
    r"|\]<\]minimax\[>\["
)
"""Marks that are tokens in the tokenizers of these models."""
ENDS = re.compile(
    r"(\s*(<\|(END_OF_TURN_TOKEN|START_OF_TURN_TOKEN|CHATBOT_TOKEN|START_THINKING|END_THINKING"
    r"|eom_id|calls|call|tool_response|end_of_msg)\|?>|<SPECIAL_12>"
    r"|<｜(end▁of▁sentence|Assistant|hy_eos:opensource)｜>|<\|close\|>message<\|sep\|>))+\s*\Z"
)
"""Marks at the end of a message. Models stop there."""


@cache
def probe(name: str) -> Probe:
    return Probe(Rendering(TEMPLATES[name]))


def readers(choice: FormatChoice, one: Rendered) -> list[Reading]:
    return [reader_of(choice, prompt, TOOLS) for prompt in (one.prompt, one.begun)]


def pieces(text: str, seed: int) -> Iterator[str]:
    """Yields the text by characters (seed 0) or in pieces of random size."""
    chance, at = random.Random(seed), 0
    while at < len(text):
        size = 1 if seed == 0 else chance.randint(1, 12)
        yield text[at : at + size]
        at += size


def test_page_is_what_the_templates_say() -> None:
    assert PAGE.read_text("utf-8") == page(), "write it: python -m tools.chat_templates page"


def test_there_is_a_reader_for_every_template_that_writes_calls() -> None:
    assert len(TEMPLATES) == 70
    assert set(TEMPLATES) - set(PROVEN) == WITHOUT_CALLS


@pytest.mark.parametrize("name", TEMPLATES)
def test_what_is_written_is_read_back(name: str) -> None:
    unread = {case for case, result in chosen(name).results.items() if result == "not read"}
    assert unread == {case for template, case in WHY if template == name}


@pytest.mark.parametrize("name", PROVEN)
def test_read_alike_in_any_pieces(name: str) -> None:
    choice = chosen(name)
    for rendered in choice.rendered:
        whole, *piece_readers = (reader_of(choice, rendered.begun, TOOLS) for _ in range(4))
        expected = joined([*whole.add(rendered.answer), *whole.finish()]).plain
        for seed, reader in enumerate(piece_readers):
            events = [
                event for piece in pieces(rendered.answer, seed) for event in reader.add(piece)
            ]
            assert joined([*events, *reader.finish()]).plain == expected


@pytest.mark.parametrize("name", PROVEN)
def test_names_and_arguments_are_streamed(name: str) -> None:
    """Names and arguments arrive before the call has ended, in all notations but two."""
    choice = chosen(name)
    rendered = next(
        rendered for rendered in choice.rendered if rendered.case.name == "nested arguments"
    )
    reader = next(
        reader_of(choice, prompt, TOOLS)
        for prompt in (rendered.prompt, rendered.begun)
        if read(reader_of(choice, prompt, TOOLS), rendered.answer).calls
    )
    events = [event for piece in pieces(rendered.answer, 0) for event in reader.add(piece)]
    count = sum(isinstance(event, CallArguments) for event in events)
    assert any(isinstance(event, CallBegun) for event in events)
    assert choice.form is not None
    assert count > 5 or choice.form.name in ("lfm2", "minimax-m3")


@pytest.mark.parametrize("name", PROVEN)
def test_awkward_texts_are_read_back(name: str) -> None:
    choice = chosen(name)
    for value in AWKWARD:
        calls = [("get_weather", {"city": value, "note": value, "count": 3})]
        if not choice.habits.single_calls:
            calls.append(("get_time", {"city": value}))
        rendered = probe(name)._case(Case("awkward", calls))
        assert rendered is not None
        same, _ = is_read(rendered, readers(choice, rendered))
        assert same != ((name, value) in UNWRITABLE), value


class Admits:
    """Checks if the grammar of a format admits a text as a model's answer."""

    width = 1024

    def __init__(self, choice: FormatChoice, *, tokens: bool) -> None:
        """
        Args:
            tokens: True if the marks are special tokens.
        """
        answers = [rendered.answer for rendered in choice.rendered]
        marks = {mark for answer in answers for mark in MARKS.findall(answer)} if tokens else set()
        special = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *sorted(marks - {"<|im_end|>"}))
        self.choice, self.tokens = choice, tokenizer(None, special=special, added=())
        self.end: int = self.tokens.eos_token_id
        self.grammars = Grammars(self.tokens, self.width, [self.end])

    def __call__(self, text: str, **more: Any) -> bool:
        form = self.choice.form
        assert form is not None
        offered = Tools(functions=list(TOOLS), **more)
        grammar = self.grammars.calls(form, offered, self.choice.framing)
        matcher = self.grammars.matcher(grammar, "tools")
        ids: Sequence[int] = self.tokens(text, add_special_tokens=False)["input_ids"]
        for place, token in enumerate([*ids, self.end]):
            row = torch.zeros(self.width)
            matcher.mask(row)
            if not torch.isfinite(row[token]):
                return False
            if matcher.consume(token):
                return place >= len(ids) - 1
        return True


def drawn(choice: FormatChoice, one: Rendered) -> str:
    """Returns the part of an answer that the model itself would have drawn after reasoning."""
    text = ENDS.sub("", re.sub(r"^</(mm:)?think>\s*", "", one.answer))
    ends = ends_of_reasoning(choice.framing, one.prompt)
    return text.partition(ends[0])[2].lstrip() if ends and ends[0] in text else text


ENFORCED = [name for name in PROVEN if (form := chosen(name).form) is not None and form.enforced]
BEYOND = {
    ("deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "text before"),
}


@pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "text"])
@pytest.mark.parametrize("name", ENFORCED)
def test_the_grammar_admits_what_the_template_writes(name: str, tokens: bool) -> None:
    choice = chosen(name)
    if not tokens and (choice.framing.headers or name == "Kimi-K3"):
        pytest.skip("its messages are told apart by tokens")
    admits = Admits(choice, tokens=tokens)
    for rendered in choice.rendered:
        if (name, rendered.case.name) in BEYOND:
            continue
        assert admits(drawn(choice, rendered), choice="auto"), rendered.case.name
        alone = (
            not rendered.case.text
            and not rendered.case.reasoning
            and "think>" not in rendered.answer
        )
        several = len(rendered.case.calls) > 1
        if alone and not (several and choice.form and choice.form.again):
            assert admits(drawn(choice, rendered).rstrip(), choice="required"), rendered.case.name
        if several:
            assert not admits(drawn(choice, rendered), choice="auto", parallel=False)


@pytest.mark.parametrize("name", ENFORCED)
def test_the_grammar_admits_text_and_no_other_calls(name: str) -> None:
    choice = chosen(name)
    admits = Admits(choice, tokens=True)
    rendered = choice.rendered[0]
    plain = "Just text: 5 < 6, [1] and {braces}."
    if choice.form and not choice.form.in_header:
        assert admits(plain, choice="auto")
        assert not admits(plain, choice="required")
    assert not admits(drawn(choice, rendered).replace("get_weather", "get_nothing"), choice="auto")


@pytest.mark.parametrize("name", PROVEN)
def test_calls_that_were_read_are_rendered_again(name: str) -> None:
    """Parsed calls are rendered again with their outputs and the server's ids."""
    choice = chosen(name)
    for rendered in choice.rendered:
        events = next(
            events
            for reader in readers(choice, rendered)
            if (events := [*reader.add(rendered.answer), *reader.finish()])
        )
        answer = joined(events)
        if not answer.calls:
            continue
        calls = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": arguments},
            }
            for call, (_, arguments) in zip(answer.calls, read_again(choice, rendered), strict=True)
        ]
        outputs = [
            {"role": "tool", "tool_call_id": call["id"], "name": "x", "content": f"OUTPUT{at}"}
            for at, call in enumerate(calls)
        ]
        messages: list[Mapping[str, Any]] = [
            {"role": "user", "content": "What is the weather like?"},
            {"role": "assistant", "content": "", "tool_calls": calls},
            *outputs,
        ]
        sent = earlier_calls.named(fitted(messages, choice.habits), TEMPLATES[name])
        rendering = Rendering(TEMPLATES[name])
        text = rendering(sent, TOOLS, begins_answer=True)
        assert text is not None, rendering.refusal
        for at, call in enumerate(answer.calls):
            assert call.name in text
            assert f"OUTPUT{at}" in text


def read_again(choice: FormatChoice, one: Rendered) -> Sequence[tuple[str, Any]]:
    return next(
        answer.calls
        for reader in readers(choice, one)
        if (answer := read(reader, one.answer)).calls
    )


WITHOUT_SYSTEM = {
    "google-gemma-2-2b-it",
    # These reject every message.
    "fireworks-ai-llama-3-firefunction-v2",
    "llama-cpp-deepseek-r1",
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_system_messages_within_a_conversation_are_shown(name: str) -> None:
    """Claude Code sends the environment as a system message after the task."""
    made = tokenizer(TEMPLATES[name])
    made.bos_token = "<|im_start|>"
    template = ChatTemplate(made, Renderer())
    messages: list[Mapping[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Sum up."},
        {"role": "system", "content": "It rains."},
    ]
    if not template.shows_later_system():
        messages = [
            {**message, "content": as_text(message["content"])}
            for message in without_later_system(messages)
        ]
    if name in WITHOUT_SYSTEM:
        with pytest.raises((jinja2.TemplateError, TemplateDataError)):
            template.rendered(messages, tools=TOOLS)
        return
    written = template.rendered(messages, tools=TOOLS)
    assert [text for text in ("Be brief.", "Sum up.", "It rains.") if text not in written] == []
