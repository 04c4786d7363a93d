import json
from pathlib import Path
from typing import Any

import pytest

from stoker.models.chat.prompts.prompts import Prepared, Prompts
from stoker.models.stages.base import InputError
from stoker.models.stages.known_tokens import UnknownTokenError
from stoker.wire.generation_request import (
    Conversation,
    Cut,
    Generation,
    Prompt,
    Sampling,
    Tools,
)
from tests.llm.support import CHATML, HERMES, tokenizer

VOCABULARY = 400
USER: dict[str, Any] = {"role": "user", "content": "Hello"}
REFUSING = (
    "{% for message in messages %}{% if message.role == 'system' %}"
    "{{ raise_exception('No system messages, please.') }}{% endif %}{{ message.content }}"
    "{% endfor %}"
)


def folder(path: Path, template: str | None = HERMES, **config: Any) -> Path:
    tokenizer(template).save_pretrained(path)
    if config:
        (path / "generation_config.json").write_text(json.dumps(config))
    return path


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Prompts:
    return Prompts(folder(tmp_path_factory.mktemp("prompts")), max_length=64, vocabulary=VOCABULARY)


def prompts_of(path: Path, template: str | None) -> Prompts:
    return Prompts(folder(path, template), max_length=64, vocabulary=VOCABULARY)


def talk(*messages: dict[str, Any], **more: Any) -> Conversation:
    return Conversation(messages=list(messages) or [USER], **more)


def asked(prompt: Prompt = "x", **sampling: Any) -> Generation:
    return Generation(api="completions", prompts=[prompt], sampling=Sampling(**sampling))


def refusal(prompts: Prompts, prompt: Prompt, place: str = "prompt") -> InputError:
    with pytest.raises(InputError) as caught:
        prompts.prepare(prompt, place)
    assert not caught.value.of_item
    return caught.value


class TestPrepare:
    def test_a_conversation(self, prompts: Prompts) -> None:
        prepared = prompts.prepare(talk(), "messages")
        text = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
        assert prompts.tokenizer.decode(prepared.tokens) == text
        assert prepared.text == text[-64:]
        assert prepared.tokens.count(prompts.tokenizer.convert_tokens_to_ids("<|im_start|>")) == 2

    def test_a_text(self, prompts: Prompts) -> None:
        prepared = prompts.prepare("Once upon a time", "prompt")
        assert prepared.tokens == prompts.tokenizer("Once upon a time")["input_ids"]

    def test_the_tokenizers_own_first_token_comes_once(self, tmp_path: Path) -> None:
        """Texts start with the tokenizer's first token. Chat templates write it themselves."""
        from tokenizers.processors import TemplateProcessing

        made = tokenizer("<|endoftext|>" + CHATML)
        first = made.convert_tokens_to_ids("<|endoftext|>")
        made.backend_tokenizer.post_processor = TemplateProcessing(
            single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", first)]
        )
        made.save_pretrained(tmp_path)
        own_prompts = Prompts(tmp_path, max_length=64, vocabulary=VOCABULARY)
        assert own_prompts.prepare("Hello", "prompt").tokens[0] == first
        for prompt in ("Hello", talk()):
            assert own_prompts.prepare(prompt, "prompt").tokens.count(first) == 1

    def test_tokens(self, prompts: Prompts) -> None:
        assert prompts.prepare([5, 6, 399], "prompt") == Prepared([5, 6, 399], "")

    @pytest.mark.parametrize("token", [VOCABULARY, -1, 10**9])
    def test_unknown_tokens(self, token: int, prompts: Prompts) -> None:
        error = refusal(prompts, [5, token], "prompt[3]")
        assert error.field == "prompt[3]"
        assert error.message == (
            f"'prompt[3]' has the token {token}; the model's token ids are from 0 to "
            f"{VOCABULARY - 1}."
        )

    @pytest.mark.parametrize("prompt", ["", []])
    def test_an_empty_one(self, prompt: Prompt, prompts: Prompts) -> None:
        error = refusal(prompts, prompt)
        assert error.field == "prompt"
        assert "is empty" in error.message

    def test_tools_reach_the_template(self, prompts: Prompts) -> None:
        function = {"type": "function", "function": {"name": "get_weather"}}
        wishes: list[tuple[Any, bool]] = [("auto", True), ("required", True), ("none", False)]
        for choice, expected in wishes:
            offered = Tools(functions=[function], choice=choice)
            prepared = prompts.prepare(talk(tools=offered), "messages")
            assert ("get_weather" in prompts.tokenizer.decode(prepared.tokens)) is expected

    def test_without_a_template(self, tmp_path: Path) -> None:
        error = refusal(prompts_of(tmp_path, None), talk(), "messages")
        assert error.field == "messages"
        assert "no chat template" in error.message

    def test_variables_of_the_template(self, tmp_path: Path) -> None:
        own_prompts = prompts_of(tmp_path, CHATML + "{{ reasoning_effort }}")
        prepared = own_prompts.prepare(talk(effort="high"), "messages")
        assert prepared.text.endswith("assistant\nhigh")

    @pytest.mark.case(6)
    def test_variables_that_it_does_not_know(self, prompts: Prompts) -> None:
        error = refusal(prompts, talk(effort="high"), "messages")
        assert error.field == "reasoning_effort"

    def test_what_the_template_refuses(self, tmp_path: Path) -> None:
        own_prompts = prompts_of(tmp_path, REFUSING)
        assert own_prompts.prepare(talk(), "messages").text == "Hello"
        error = refusal(own_prompts, talk({"role": "system", "content": "x"}), "messages")
        assert error.field == "messages"
        assert "No system messages, please." in error.message

    @pytest.mark.case(5)
    @pytest.mark.parametrize(
        "template",
        [
            "{{ messages[0].content.nothing.more }}",
            "{{ messages[0].content + 1 }}",
            "{{ messages[0].content.index('zzz') }}",
            "{{ 1 // 0 }}",
            "{{ [].pop() }}",
            "{{ messages[0].content.__class__.__mro__ }}",
            "{% if %}",
        ],
    )
    def test_what_does_not_fit_the_template(self, template: str, tmp_path: Path) -> None:
        """Any error within a template is an error of the request, not of the server."""
        assert refusal(prompts_of(tmp_path, template), talk(), "messages").field == "messages"


SWITCHED = (
    CHATML
    + "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>{% endif %}"
    "{# verbosity #}{{ 'documents' }}{{ messages[0].tools_in_user_message }}"
)
GROUNDED = "{% for one in documents or [] %}[{{ one.title }}] {{ one.text }} {% endfor %}" + CHATML
ASSISTANT: dict[str, Any] = {"role": "assistant", "content": "The capital "}


class TestTemplateVariables:
    @pytest.mark.parametrize("value", [True, False])
    def test_reach_the_template_as_in_transformers(self, value: bool, tmp_path: Path) -> None:
        own_prompts = prompts_of(tmp_path, SWITCHED)
        variables = {"enable_thinking": value}
        prepared = own_prompts.prepare(talk(variables=variables), "messages")
        expected = own_prompts.tokenizer.apply_chat_template(
            [USER], tokenize=False, add_generation_prompt=True, **variables
        )
        assert own_prompts.tokenizer.decode(prepared.tokens) == expected

    @pytest.mark.parametrize(
        "name", ["thinking", "verbosity", "documents", "tools_in_user_message"]
    )
    def test_that_it_does_not_read_are_refused(self, name: str, tmp_path: Path) -> None:
        """Names in comments, texts and attributes do not count as variables."""
        error = refusal(prompts_of(tmp_path, SWITCHED), talk(variables={name: 1}), "messages")
        assert error.field == f"chat_template_kwargs.{name}"

    def test_a_refusal_names_the_switch_that_it_reads(self, tmp_path: Path) -> None:
        error = refusal(prompts_of(tmp_path, SWITCHED), talk(effort="low"), "messages")
        assert error.field == "reasoning_effort"
        assert "'enable_thinking'" in error.message

    def test_special_tokens_stay_the_models_own(self, tmp_path: Path) -> None:
        own_prompts = prompts_of(tmp_path, "{{ eos_token }}")
        prepared = own_prompts.prepare(talk(variables={"eos_token": "x"}), "messages")
        assert prepared.text == "<|im_end|>"

    def test_documents(self, tmp_path: Path) -> None:
        own_prompts = prompts_of(tmp_path, GROUNDED)
        documents = [{"title": "A", "text": "first"}, {"title": "B", "text": "second"}]
        prepared = own_prompts.prepare(talk(documents=documents), "messages")
        expected = own_prompts.tokenizer.apply_chat_template(
            [USER], tokenize=False, add_generation_prompt=True, documents=documents
        )
        assert own_prompts.tokenizer.decode(prepared.tokens) == expected
        assert "[B] second" in expected

    def test_documents_that_it_does_not_read(self, prompts: Prompts) -> None:
        error = refusal(prompts, talk(documents=[{"text": "x"}]), "messages")
        assert error.field == "documents"


TRIMMING = "{% for one in messages %}<{{ one.role }}>{{ one.content | trim }}</>{% endfor %}"
OMITTING = "{% for one in messages[:-1] %}{{ one.content }}{% endfor %}"


class TestContinued:
    @pytest.mark.parametrize("template", [HERMES, CHATML, TRIMMING, SWITCHED])
    @pytest.mark.parametrize("last", ["The capital ", "Yes", " <b>é</b>\n", "Hello"])
    def test_as_transformers_renders_it(self, template: str, last: str, tmp_path: Path) -> None:
        own_prompts = prompts_of(tmp_path, template)
        messages = [USER, {"role": "assistant", "content": last}]
        prepared = own_prompts.prepare(talk(*messages, continues=True), "messages")
        expected = own_prompts.tokenizer.apply_chat_template(
            messages, tokenize=False, continue_final_message=True
        )
        assert own_prompts.tokenizer.decode(prepared.tokens) == expected
        assert expected.rstrip().endswith(last.strip())

    def test_without_the_beginning_of_an_answer(self, prompts: Prompts) -> None:
        prepared = prompts.prepare(talk(USER, ASSISTANT, begins_answer=False), "messages")
        expected = prompts.tokenizer.apply_chat_template([USER, ASSISTANT], tokenize=False)
        assert prompts.tokenizer.decode(prepared.tokens) == expected

    @pytest.mark.parametrize(
        "last",
        [
            {"role": "assistant", "content": ""},
            {"role": "assistant", "content": "x", "tool_calls": [{"id": "a"}]},
        ],
    )
    def test_nothing_to_go_on_from(self, last: dict[str, Any], prompts: Prompts) -> None:
        error = refusal(prompts, talk(USER, last, continues=True), "messages")
        assert error.field == "messages"
        assert "continue_final_message" in error.message

    def test_a_template_that_leaves_it_out(self, tmp_path: Path) -> None:
        own_prompts = prompts_of(tmp_path, OMITTING)
        error = refusal(own_prompts, talk(USER, ASSISTANT, continues=True), "messages")
        assert "changes the last message" in error.message

    @pytest.mark.parametrize(
        ("last", "reasons"), [("<think>\nLet me", True), ("<think>\nx</think>Yes", False)]
    )
    def test_within_reasoning(self, last: str, reasons: bool, prompts: Prompts) -> None:
        message = {"role": "assistant", "content": last}
        prepared = prompts.prepare(talk(USER, message, continues=True), "messages")
        assert prepared.text.endswith("<think>") is reasons


class TestCut:
    def test_keeps_the_end_or_the_beginning(self, prompts: Prompts) -> None:
        whole = [*range(5, 25)]
        for side, expected in (("left", whole[-7:]), ("right", whole[:7])):
            cut = Cut(tokens=7, side=side)  # pyright: ignore[reportArgumentType]
            assert prompts.prepare(whole, "prompt", cut=cut).tokens == expected
        assert prompts.prepare(whole, "prompt", cut=Cut(tokens=20)).tokens == whole

    @pytest.mark.parametrize(("wished", "kept"), [(None, 63), (10, 54), (500, 1)])
    def test_to_what_there_is_room_for(
        self, wished: int | None, kept: int, prompts: Prompts
    ) -> None:
        prepared = prompts.prepare([7] * 200, "prompt", wished, Cut(tokens=-1))
        assert len(prepared.tokens) == kept

    def test_a_conversation(self, prompts: Prompts) -> None:
        whole = prompts.prepare(talk(), "messages")
        prepared = prompts.prepare(talk(), "messages", cut=Cut(tokens=4))
        assert prepared == Prepared(whole.tokens[-4:], whole.text)


class TestLimited:
    def limited(self, prompts: Prompts, size: int, **sampling: Any) -> Sampling:
        return prompts.limited(Prepared([1] * size, ""), asked(**sampling), "prompt")

    def refused(self, prompts: Prompts, size: int, **sampling: Any) -> InputError:
        with pytest.raises(InputError) as caught:
            self.limited(prompts, size, **sampling)
        return caught.value

    def test_what_there_is_room_for(self, prompts: Prompts) -> None:
        assert self.limited(prompts, 50).max_tokens == 14
        assert self.limited(prompts, 63).max_tokens == 1
        assert self.limited(prompts, 50, max_tokens=14).max_tokens == 14
        assert self.limited(prompts, 50, max_tokens=3).max_tokens == 3

    @pytest.mark.parametrize("size", [64, 90])
    def test_a_prompt_that_is_too_long(self, size: int, prompts: Prompts) -> None:
        error = self.refused(prompts, size)
        assert error.field == "prompt"
        assert error.code == "context_length_exceeded"
        assert error.message == (
            "This model's maximum context length is 64 tokens. However, your prompt resulted in "
            f"{size} tokens, which leaves none for the answer. Please reduce the length of the "
            "prompt. (context_length_exceeded)"
        )

    def test_an_answer_that_is_too_long(self, prompts: Prompts) -> None:
        error = self.refused(prompts, 50, max_tokens=15)
        assert error.field == "max_tokens"
        assert error.code == "context_length_exceeded"
        assert error.message == (
            "This model's maximum context length is 64 tokens. However, you requested 65 tokens "
            "(50 in the prompt, 15 in the completion). Please reduce the length of the prompt, or "
            "'max_tokens'. (context_length_exceeded)"
        )

    def test_a_prompt_without_an_answer(self, prompts: Prompts) -> None:
        """A prompt without an answer leaves room for one token: some engines always draw one."""
        assert self.limited(prompts, 63, max_tokens=0).max_tokens == 0
        assert self.refused(prompts, 64, max_tokens=0).field == "prompt"

    def test_names_the_field_that_was_given(self, prompts: Prompts) -> None:
        generation = Generation(
            api="chat",
            prompts=["x"],
            sampling=Sampling(max_tokens=100),
            limit_field="max_completion_tokens",
        )
        with pytest.raises(InputError) as caught:
            prompts.limited(Prepared([1], ""), generation, "messages")
        assert caught.value.field == "max_completion_tokens"

    @pytest.mark.parametrize("token", [VOCABULARY, -1])
    def test_tokens_that_there_are_not(self, token: int, prompts: Prompts) -> None:
        assert self.refused(prompts, 5, logit_bias={token: 1.0}).field == "logit_bias"
        assert self.refused(prompts, 5, stop_token_ids=[1, token]).field == "stop_token_ids"
        assert self.refused(prompts, 5, allowed_tokens=[1, token]).field == "allowed_token_ids"


class TestTokensBeyondTheEmbedding:
    def small(self, path: Path, names: list[str], template: str = CHATML) -> Prompts:
        """Returns prompts of a model that knows all tokens except the last ones, `names`."""
        made = tokenizer(template)
        made.add_tokens(names)
        made.save_pretrained(path)
        return Prompts(path, max_length=64, vocabulary=made.convert_tokens_to_ids(names[0]))

    @pytest.mark.parametrize("prompt", ["a <extra>", talk({"role": "user", "content": "<extra>"})])
    def test_a_text_with_one_is_refused(self, prompt: Prompt, tmp_path: Path) -> None:
        prompts = self.small(tmp_path, ["<extra>"])
        message = refusal(prompts, prompt).message
        assert (
            f"the token '<extra>' ({prompts.tokenizer.convert_tokens_to_ids('<extra>')})" in message
        )
        assert prompts.prepare("a", "prompt").tokens

    def test_tokens_are_checked_as_texts_are(self, tmp_path: Path) -> None:
        prompts = self.small(tmp_path, ["<extra>"])
        token = prompts.tokenizer.convert_tokens_to_ids("<extra>")
        assert "'<extra>'" in refusal(prompts, [1, token]).message
        assert "the token 5000" in refusal(prompts, [5000]).message
        assert "the token -1" in refusal(prompts, [-1]).message

    def test_a_template_that_needs_one_is_an_error_of_the_load(self, tmp_path: Path) -> None:
        template = CHATML.replace("<|im_start|>assistant", "<turn>assistant")
        with pytest.raises(UnknownTokenError, match=r"'<turn>'.*chat template"):
            self.small(tmp_path, ["<turn>"], template)


class TestHidden:
    def test_special_tokens_but_for_those_with_a_meaning(self, prompts: Prompts) -> None:
        names = {prompts.tokenizer.convert_ids_to_tokens(token) for token in prompts.hidden}
        assert names == {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}


CALLING = (
    "{% for message in messages %}{{ message.role }}:{{ message.content }}"
    "{% for call in message.tool_calls or [] %}[{{ call.id }} {{ call.function.name }}"
    "ARGUMENTS]{% endfor %}{{ message.tool_call_id or '' }};{% endfor %}"
)
WRITTEN = (
    "{% if call.function.arguments is string %}{{ call.function.arguments }}"
    "{% else %}{{ call.function.arguments | tojson }}{% endif %}"
)
LISTED = (
    "{% for name, value in call.function.arguments | items %}{{ name }}={{ value }}{% endfor %}"
)
NINE = (
    "{% for message in messages %}{% for call in message.tool_calls or [] %}"
    "{% if call.id is not defined or call.id | length != 9 %}"
    "{{ raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}"
    "{% endif %}{% endfor %}{% endfor %}"
)
PARTS = (
    "{% for message in messages %}{{ message.role }}:{% if message.content is string %}"
    "{{ message.content }}{% else %}{% for part in message.content %}{{ part.text }}{% endfor %}"
    "{% endif %};{% endfor %}"
)


def called(identifier: str, arguments: Any) -> Conversation:
    function = {"name": "f", "arguments": arguments}
    calls = [{"id": identifier, "type": "function", "function": function}]
    answer: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": calls}
    return talk(USER, answer, {"role": "tool", "tool_call_id": identifier, "content": "1"})


class TestEarlierCalls:
    @pytest.mark.parametrize(
        ("arguments", "written", "listed"),
        [({"a": 1}, '{"a": 1}', "a=1"), ("{a: 1}", "{a: 1}", ""), ('{"a": "\\x', '{"a": "\\x', "")],
    )
    def test_whose_arguments_are_no_json(
        self, arguments: Any, written: str, listed: str, tmp_path: Path
    ) -> None:
        """Templates for texts show such arguments. Templates for objects only receive none."""
        for number, (way, expected) in enumerate(((WRITTEN, written), (LISTED, listed))):
            made = prompts_of(tmp_path / str(number), CALLING.replace("ARGUMENTS", way))
            text = made.prepare(called("c", arguments), "messages").text
            assert text == f"user:Hello;assistant:[c f{expected}];tool:1c;"

    @pytest.mark.parametrize(
        "identifier", ["call_0123456789abcdef01234567", "x", "é" * 9, "abc-12345"]
    )
    def test_whose_ids_are_not_the_templates(self, identifier: str, tmp_path: Path) -> None:
        """Mistral's templates require nine letters or digits.

        The server's own ids are longer.
        """
        made = prompts_of(tmp_path, NINE + CALLING.replace("ARGUMENTS", WRITTEN))
        text = made.prepare(called(identifier, {}), "messages").text
        short = text.partition("[")[2].partition(" ")[0]
        assert len(short) == 9 and short.isalnum()
        assert text == f"user:Hello;assistant:[{short} f{{}}];tool:1{short};"
        unchanged = made.prepare(called("abcABC123", {}), "messages").text
        assert "[abcABC123 f" in unchanged


class TestParts:
    @pytest.mark.parametrize(("template", "joined"), [(PARTS, "ab"), (CHATML, "a\nb")])
    def test_are_joined_only_for_templates_that_take_none(
        self, template: str, joined: str, tmp_path: Path
    ) -> None:
        made = prompts_of(tmp_path, template)
        parts = [{"type": "text", "text": text} for text in "ab"]
        roles = ("system", "user", "assistant", "tool")
        prepared = made.prepare(talk(*({"role": role, "content": parts} for role in roles)), "m")
        text = made.tokenizer.decode(prepared.tokens)
        assert text.count(joined) == 4
        conversation = talk({"role": "user", "content": parts[:1]})
        assert made.prepare(conversation, "m") == made.prepare(
            talk({"role": "user", "content": "a"}), "m"
        )


SYSTEM = {"role": "system", "content": "Be brief."}
LATER = {"role": "system", "content": "It rains."}
ANSWER = {"role": "assistant", "content": "Hi."}
ONLY_FIRST = (
    "{% for message in messages %}"
    "{% if message.role == 'system' and not loop.first %}{{ raise_exception('late') }}{% endif %}"
    "<{{ message.role }}>{{ message.content }}{% endfor %}"
)


class TestLaterSystemMessages:
    @pytest.mark.parametrize(
        ("messages", "expected"),
        [
            ([SYSTEM, USER, LATER], "<system>Be brief.<user>Hello\nIt rains."),
            ([SYSTEM, USER, LATER, USER], "<system>Be brief.<user>Hello\nIt rains.\nHello"),
            (
                [SYSTEM, USER, ANSWER, LATER, USER, LATER],
                "<system>Be brief.<user>Hello<assistant>Hi.<user>It rains.\nHello\nIt rains.",
            ),
            ([SYSTEM, LATER, USER], "<system>Be brief.\nIt rains.<user>Hello"),
            ([SYSTEM, USER, USER], "<system>Be brief.<user>Hello<user>Hello"),
        ],
    )
    def test_become_text_of_the_user_if_the_template_rejects_them(
        self, tmp_path: Path, messages: list[dict[str, Any]], expected: str
    ) -> None:
        prompts = prompts_of(tmp_path, ONLY_FIRST)
        assert text_of(prompts, prompts.prepare(talk(*messages), "messages")) == expected

    def test_stay_if_the_template_shows_them(self, prompts: Prompts) -> None:
        written = text_of(prompts, prompts.prepare(talk(SYSTEM, USER, LATER), "messages"))
        assert "<|im_start|>user\nHello<|im_end|>\n<|im_start|>system\nIt rains." in written


def text_of(prompts: Prompts, prepared: Prepared) -> str:
    return prompts.tokenizer.decode(prepared.tokens)
