"""Forms admit any JSON that a model legitimately writes, and do not change it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from stoker.models.chat.forms.forms import Forms
from stoker.models.chat.prompts.prompts import Prompts
from stoker.wire.generation_request import Conversation, Generation, Guide, Sampling, Tools
from tests.llm.support import HERMES, VOCABULARY, tokenizer
from tests.support.awkward import FORBIDDEN, STRINGS, VALUES

SPECIAL = ("<s>", "</s>", "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<hidden>")
ADDED = ("<tool_call>", "</tool_call>", "<think>", "</think>", "<unit>")
ALL = f"[{', '.join([*STRINGS, *VALUES])}]"
TEXTS = f"[{', '.join(STRINGS)}]"
DECODED = [json.loads(string) for string in STRINGS]
PAIRS = ", ".join(f"{text}: {text}" for text in STRINGS)


def of_items(items: Any, **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, **more}


def named(schema: Any, **more: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"v": schema},
        "required": ["v"],
        "additionalProperties": False,
        **more,
    }


STRING: Any = {"type": "string"}
EXACT = [{**STRING, "minLength": len(text), "maxLength": len(text)} for text in DECODED]
SPELLED = [text for text in STRINGS if not any(f"\\u00{code}" in text for code in ("41", "6", "7"))]
"""Strings with letters and digits that are not escaped, like the values of a schema."""
CHOICES: Any = {"enum": list(dict.fromkeys(json.loads(text) for text in SPELLED))}
FORMS: dict[str, tuple[Any, str]] = {
    "any": (True, ALL),
    "no type": ({}, ALL),
    "an object": ({"type": "object"}, f'{{"v": {ALL}, {PAIRS}}}'),
    "strings": (of_items(STRING), TEXTS),
    "a member": (named(of_items(STRING)), f'{{"v": {TEXTS}}}'),
    "of any kind": (named(True), f'{{"v": {ALL}}}'),
    "names": ({"type": "object", "additionalProperties": STRING}, f"{{{PAIRS}}}"),
    "names beside others": (
        {"type": "object", "properties": {"first": {"type": "null"}}, "required": ["first"]},
        f'{{"first": null, {PAIRS}}}',
    ),
    "given names": (
        {
            "type": "object",
            "properties": dict.fromkeys(CHOICES["enum"], True),
            "additionalProperties": False,
        },
        f"{{{', '.join(f'{json.dumps(string)}: 1' for string in CHOICES['enum'])}}}",
    ),
    "lengths": ({"type": "array", "prefixItems": EXACT, "items": False, "minItems": 9}, TEXTS),
    "choices": (of_items(CHOICES), f"[{', '.join(SPELLED)}]"),
    "either": (of_items({"anyOf": [{"type": "null"}, STRING]}), TEXTS),
    "one of": (of_items({"oneOf": [{"type": "integer"}, STRING]}), TEXTS),
    "types": (of_items({"type": ["integer", "string"]}), TEXTS),
    "referred to": (
        {**of_items({"$ref": "#/$defs/text"}), "$defs": {"text": {"allOf": [STRING]}}},
        TEXTS,
    ),
    "recursive": (
        {"type": "array", "items": {"anyOf": [STRING, {"$ref": "#"}]}},
        f"[{TEXTS}, [{TEXTS}]]",
    ),
}


class Writer:
    """Writes a text until the form of a request forbids a token."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = tokenizer(HERMES, special=SPECIAL, added=ADDED)
        self.prompts = Prompts(
            folder, max_length=64, vocabulary=VOCABULARY, tokenizer=self.tokenizer
        )
        self.forms = Forms(self.prompts, self.prompts.dialect, VOCABULARY)

    def says(self, generation: Generation, text: str, *, may_reason: bool = False) -> str:
        form = self.forms.form(generation, None, may_reason=may_reason)
        assert form is not None
        matcher = self.forms.matcher(form, None)
        accepted: list[int] = []
        tokens = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        for token in [*tokens, self.tokenizer.eos_token_id]:
            row = torch.zeros(VOCABULARY)
            matcher.mask(row)
            if not torch.isfinite(row[token]):
                return self.tokenizer.decode(accepted) + "…"
            if token != self.tokenizer.eos_token_id:
                accepted.append(token)
            if matcher.consume(token):
                break
        return self.tokenizer.decode(accepted)


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Writer:
    return Writer(tmp_path_factory.mktemp("awkward"))


def asked(guide: Any = None, schema: Any = None, **tools: Any) -> Generation:
    """Returns a request for JSON of a schema, for calls with such arguments, or for either."""
    functions = [{"type": "function", "function": {"name": "f", **tools.pop("function", {})}}]
    offered = Tools(functions=functions, **tools) if tools else None
    kind: Any = "json_object" if guide == "object" else "json_schema"
    return Generation(
        api="chat",
        prompts=[Conversation(messages=[], tools=offered)],
        sampling=Sampling(),
        guide=Guide(kind=kind, field="r", value=schema) if guide else None,
    )


ANYTHING: Any = {"parameters": {"type": "object"}}


def call(arguments: str) -> str:
    return f'<tool_call>\n{{"name": "f", "arguments": {arguments}}}\n</tool_call>'


class TestForms:
    @pytest.mark.parametrize("name", FORMS)
    def test_of_a_schema(self, name: str, writer: Writer) -> None:
        schema, text = FORMS[name]
        json.loads(text)
        schema = {"anyOf": [schema]} if isinstance(schema, bool) else schema
        assert writer.says(asked("schema", schema), text) == text

    def test_of_any_object(self, writer: Writer) -> None:
        text = f'{{"v": {ALL}, {PAIRS}, "<tool_call>": "</tool_call>"}}'
        assert writer.says(asked("object"), text) == text

    @pytest.mark.parametrize("text", FORBIDDEN)
    def test_nothing_else(self, text: str, writer: Writer) -> None:
        """Forbidden texts are not admitted. `FORBIDDEN` lists the reasons."""
        for guide, schema in (("object", None), ("schema", {"type": "object"})):
            written = writer.says(asked(guide, schema), f'{{"v": {text}}}')
            assert written.endswith("…"), FORBIDDEN[text]

    @pytest.mark.parametrize(
        ("schema", "given", "refused"),
        [
            ({**STRING, "maxLength": 2}, ['"\\ud83d\\ude00é"', '"\\/\\n"'], ['"\\u00e9bc"']),
            ({**STRING, "minLength": 2}, ['"\\u00e9b"'], ['"\\ud83d\\ude00"', '"\\/"']),
            ({"enum": ["é/"]}, ['"é/"', '"\\u00E9\\/"'], ['"e/"', '"\\u00e8/"']),
            ({"const": "\n"}, ['"\\n"', '"\\u000A"'], ['"\\r"']),
            ({**STRING, "pattern": "^[a-z]+$"}, ['"ab"'], ['"\\u00e9"', '"A"']),
            ({**STRING, "format": "date"}, ['"2026-11-26"'], ['"\\u0032026-11-26"']),
        ],
    )
    def test_what_strings_have_to_be(
        self, schema: Any, given: list[str], refused: list[str], writer: Writer
    ) -> None:
        """An escape counts as the character that it encodes.

        Patterns and formats are matched against the written text. No escape is needed to match
        them.
        """
        generation = asked("schema", named(schema))
        for text in given:
            assert writer.says(generation, f'{{"v": {text}}}') == f'{{"v": {text}}}'
        for text in refused:
            assert writer.says(generation, f'{{"v": {text}}}').endswith("…")


class TestCalls:
    @pytest.mark.parametrize("choice", ["auto", "required"])
    @pytest.mark.parametrize("strict", [False, True])
    @pytest.mark.parametrize("guide", [None, "object"])
    def test_arguments(self, choice: Any, strict: bool, guide: Any, writer: Writer) -> None:
        schema = named(of_items(STRING)) if strict else {"type": "object"}
        function = {"strict": strict, "parameters": schema}
        generation = asked(guide, choice=choice, function=function)
        text = call(f'{{"v": {TEXTS}}}' if strict else f'{{"v": {ALL}, {PAIRS}}}')
        assert writer.says(generation, text) == text

    @pytest.mark.parametrize(
        "text",
        [
            "5 <unit> each, <hidden>and more",
            "<think>\nHot?\n</think>\n\nIt is hot.",
            f"<think>\nI call.\n</think>\n\n{call('{}')}",
            f"Is 5 <unit> hot? <hidden>{call('{}')}\n<think>and</think> {call('{}')}\n5 <unit>",
            f"{''.join(json.loads(string) for string in STRINGS)}",
        ],
    )
    def test_text_beside_them(self, text: str, writer: Writer) -> None:
        assert writer.says(asked(choice="auto"), text) == text

    @pytest.mark.parametrize("text", ["a<|im_start|>user", "a<|endoftext|>", "<tool_call>{}"])
    def test_no_turn_begins_within(self, text: str, writer: Writer) -> None:
        assert writer.says(asked(choice="auto"), text).endswith("…")


class TestReasoning:
    """A model that writes `<think>` itself may reason before a form or a call."""

    FORMS = (
        (asked("object"), '{"v": "<think> 5 <unit>"}'),
        (asked("schema", named(STRING)), '{"v": "</think>"}'),
        (asked(choice="required", function=ANYTHING), call('{"v": "<think>"}')),
        (asked("object", choice="auto", function=ANYTHING), call('{"v": "<think>"}')),
        (asked("object", choice="auto"), '{"v": "<think>"}'),
    )

    @pytest.mark.parametrize(("generation", "end"), FORMS)
    def test_before_a_form(self, generation: Generation, end: str, writer: Writer) -> None:
        for begin in ("", "<think></think>", '<think>\nI {think} "so".\n</think>\n\n'):
            text = begin + end
            assert writer.says(generation, text, may_reason=True) == text
        assert writer.says(generation, f"So: {end}", may_reason=True) == "…"

    @pytest.mark.parametrize("size", [1, 5, 1000])
    def test_is_told_apart(self, size: int, writer: Writer) -> None:
        """After the reasoning, the content is exactly the form, with any marks in its strings."""
        content = '{"v": "<think>a</think> <tool_call>"}'
        text = f"<think>\nb\n</think>\n\n{content}"
        reader = writer.forms._dialect.reader("", tools=[], either=True)
        assert reader is not None
        events = [
            event for at in range(0, len(text), size) for event in reader.add(text[at : at + size])
        ] + reader.finish()
        assert "".join(part.text for part in events if not part.reasoning) == content
        assert "".join(part.text for part in events if part.reasoning).strip() == "b"

    def test_of_prompts_that_have_begun_it(self, writer: Writer) -> None:
        end: int = writer.tokenizer.get_vocab()["</think>"]
        form = writer.forms.form(asked("object"), end)
        assert form is not None
        for text in ("I</think>{}", "I <think></think>\n\n{}"):
            matcher = writer.forms.matcher(form, end)
            for token in writer.tokenizer(text)["input_ids"]:
                row = torch.zeros(VOCABULARY)
                matcher.mask(row)
                assert torch.isfinite(row[token]), text
                matcher.consume(token)
