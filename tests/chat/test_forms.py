"""The form of an answer follows from the request and the model."""

from pathlib import Path
from typing import Any

import pytest
import torch

from stoker.models.chat.answers.choices import Choice, TextRequest
from stoker.models.chat.answers.detokenizing import Detokenizer, Stops
from stoker.models.chat.forms.forms import Forms
from stoker.models.chat.prompts.prompts import Prompts
from stoker.models.stages.base import InputError
from stoker.wire.generation_request import Conversation, Generation, Guide, Sampling, Tools
from tests.chat.test_grammar import UNIT, function
from tests.llm.support import CHATML, HERMES, VOCABULARY, tokenizer

OBJECT = Guide(kind="json_object", field="response_format")
BAD = {"type": "object", "properties": {"a": {"not": {"type": "null"}}}}
CALL = '<tool_call>\n{"name": "get_it", "arguments": {"unit": "km"}}\n</tool_call>'
OWN: Any = {
    "start_anchor_pattern": r"\A(?!)",
    "fields": {
        "content": {"content": "text"},
        "tool_calls": {"open": "<<", "close": ">>", "content": "json", "repeats": True},
    },
}


def forms(tmp_path: Path, template: str = HERMES, own: Any = None) -> Forms:
    made = tokenizer(template)
    if own is not None:
        made.response_template = own
    prompts = Prompts(tmp_path, max_length=64, vocabulary=VOCABULARY, tokenizer=made)
    return Forms(prompts, prompts.dialect, VOCABULARY)


def asked(
    guide: Guide | None = None, tools: list[Any] | None = None, choice: Any = "auto"
) -> Generation:
    offered = Tools(functions=tools, choice=choice) if tools else None
    prompt = Conversation(messages=[], tools=offered)
    return Generation(api="chat", prompts=[prompt], sampling=Sampling(), guide=guide)


def allowed(forms: Forms, given: Generation, text: str, after: int | None = None) -> bool:
    """Returns True if an answer may be this text."""
    form = forms.form(given, after)
    if form is None:
        return True
    matcher = forms.matcher(form, after)
    made: Any = forms._prompts.tokenizer
    for token in [*made(text, add_special_tokens=False)["input_ids"], made.eos_token_id]:
        row = torch.zeros(VOCABULARY)
        matcher.mask(row)
        if not torch.isfinite(row[token]):
            return False
        if matcher.consume(token):
            return True
    return True


GET_IT = function("get_it", UNIT)


class TestForm:
    @pytest.mark.parametrize(
        ("given", "taken"),
        [
            (asked(), {"text", "object", "call"}),
            (asked(OBJECT), {"object"}),
            (asked(tools=[GET_IT]), {"text", "object", "call"}),
            (asked(tools=[GET_IT], choice="required"), {"call"}),
            (asked(tools=[GET_IT], choice="none"), {"text", "object", "call"}),
            (asked(OBJECT, [GET_IT]), {"object", "call"}),
            (asked(OBJECT, [GET_IT], "none"), {"object"}),
        ],
    )
    def test_what_may_be_said(self, given: Generation, taken: set[str], tmp_path: Path) -> None:
        texts = {"text": "Hello", "object": '{"a": 1}', "call": CALL}
        made = forms(tmp_path)
        assert {name for name, text in texts.items() if allowed(made, given, text)} == taken

    def test_begins_behind_the_reasoning(self, tmp_path: Path) -> None:
        made = forms(tmp_path)
        after: int = made._prompts.tokenizer.get_vocab()["</think>"]
        generation = asked(OBJECT, [GET_IT])
        for end in ('{"a": 1}', '\n\n{"a": 1}', CALL, f"\n\n{CALL}"):
            assert allowed(made, generation, f"I think so.</think>{end}", after)
        for end in ("Hello", f'{CALL}{{"a": 1}}'):
            assert not allowed(made, generation, f"I think so.</think>{end}", after)

    def test_of_a_model_that_is_not_known_to_call(self, tmp_path: Path) -> None:
        """A model without a known call format cannot call. Only the form is enforced."""
        made = forms(tmp_path, CHATML)
        assert allowed(made, asked(OBJECT, [GET_IT]), '{"a": 1}')
        assert not allowed(made, asked(OBJECT, [GET_IT]), CALL)
        assert made.form(asked(tools=[GET_IT]), None) is None

    def test_of_a_model_that_calls_in_a_way_of_its_own(self, tmp_path: Path) -> None:
        made = forms(tmp_path, CHATML, own=OWN)
        assert made.form(asked(tools=[GET_IT]), None) is None
        assert allowed(made, asked(OBJECT, [GET_IT], "none"), '{"a": 1}')
        with pytest.raises(
            InputError, match=r"'response_format' cannot .* together with tools"
        ) as caught:
            made.form(asked(OBJECT, [GET_IT]), None)
        assert caught.value.field == "response_format"
        with pytest.raises(InputError) as caught:
            made.form(asked(tools=[GET_IT], choice="required"), None)
        assert caught.value.field == "tool_choice"


class TestArguments:
    """Arguments that are not an object make no call: the answer would show them as text."""

    @pytest.mark.parametrize(
        "schema",
        [
            {"properties": {"a": {}}},
            {"description": "an object, which the schema does not say"},
            {"type": ["object", "null"], "properties": {"a": {}}},
            {
                "anyOf": [
                    {"type": "object"},
                    {"type": "string"},
                    {"type": "array"},
                    {"type": "null"},
                ]
            },
            {"allOf": [{"properties": {"a": {}}}]},
            {"$ref": "#/$defs/x", "$defs": {"x": {"properties": {"a": {}}}}},
        ],
    )
    def test_are_an_object(self, schema: Any, tmp_path: Path) -> None:
        made = forms(tmp_path)
        generation = asked(
            tools=[{"function": {"name": "f", "parameters": schema}}], choice="required"
        )
        call = '<tool_call>\n{"name": "f", "arguments": %s}\n</tool_call>'
        accepted = {
            arguments: allowed(made, generation, call % arguments)
            for arguments in ('{"a": 1}', "[]", '"a"', "null")
        }
        assert accepted == {'{"a": 1}': True, "[]": False, '"a"': False, "null": False}

    @pytest.mark.parametrize(
        "schema",
        [
            {"type": "array"},
            {"type": ["string", "null"]},
            {"anyOf": [{"type": "string"}, {"type": "null"}]},
            {"$ref": "#/$defs/x", "$defs": {"x": {"type": "string"}}},
        ],
    )
    @pytest.mark.parametrize("choice", ["auto", "required"])
    def test_of_no_object(self, schema: Any, choice: str, tmp_path: Path) -> None:
        wrong = {"function": {"name": "wrong", "parameters": schema}}
        words = r"'tools\[1\].* of the tool 'wrong' .* make it a property of an object\."
        with pytest.raises(InputError, match=words) as caught:
            forms(tmp_path).form(asked(tools=[GET_IT, wrong], choice=choice), None)
        assert caught.value.field == "tools[1].function.parameters"


class TestFaults:
    @pytest.mark.parametrize(
        ("guide", "function", "field"),
        [
            (Guide(kind="json_schema", field="text.format.schema", value=BAD), GET_IT, None),
            (Guide(kind="regex", field="structured_outputs", value="((("), GET_IT, None),
            (Guide(kind="grammar", field="structured_outputs", value="start: x"), GET_IT, None),
            (OBJECT, function("bad", BAD), "tools[0].function.parameters"),
        ],
    )
    def test_name_the_part(
        self, guide: Guide, function: Any, field: str | None, tmp_path: Path
    ) -> None:
        made = forms(tmp_path)
        with pytest.raises(InputError) as caught:
            form = made.form(asked(guide, [function]), None)
            assert form is not None
            made.matcher(form, None)
        assert caught.value.field == (field or guide.field)

    @pytest.mark.parametrize(
        "part", [{"anyOf": []}, {"enum": []}, {"type": "array", "minItems": 2, "maxItems": 1}]
    )
    def test_name_an_optional_part(self, part: Any, tmp_path: Path) -> None:
        """Errors name an optional part that no value fits, as it is alone in the grammar."""
        bad = function("bad", {"type": "object", "properties": {"x": part}})
        made = forms(tmp_path)
        with pytest.raises(
            InputError, match=r"properties\.x.* of the tool 'bad' cannot be enforced"
        ):
            form = made.form(asked(tools=[GET_IT, bad]), None)
            assert form is not None
            made.matcher(form, None)

    @pytest.mark.parametrize(
        ("said", "calls"),
        [("", False), ('{"a', False), ("<tool_call>\n{", True), (CALL[:40], True), (CALL, True)],
    )
    def test_while_it_is_written(self, said: str, calls: bool, tmp_path: Path) -> None:
        """The text written so far decides if the tools or the form are at fault."""
        made = forms(tmp_path)
        generation = asked(OBJECT, [GET_IT])
        reader = made._dialect.reader("", tools=[GET_IT], either=True)
        text = Detokenizer(made._prompts.tokenizer.backend_tokenizer, frozenset())
        writer: Any = None
        choice = Choice(
            TextRequest(1, generation, writer), 0, 1, text, Stops([]), reader, made.bytes_of
        )
        assert reader is not None
        for character in said:
            reader.add(character)
        assert choice.calls == calls
