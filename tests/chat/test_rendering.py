"""A chat template that never ends or uses all memory costs one request, and nothing else."""

import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jinja2
import psutil
import pytest

from stoker.models.chat.prompts import rendering
from stoker.models.chat.prompts.prompts import Prompts
from stoker.models.chat.prompts.rendering import Renderer, TemplateDataError, TemplateLimitError
from stoker.models.chat.prompts.templates import ChatTemplate
from stoker.models.stages.base import InputError
from stoker.wire.generation_request import Conversation
from tests.llm.support import HERMES, tokenizer

TALK = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi", "name": None}]
LOOP = "{% for a in range(99999) %}"
TOO_LONG = (LOOP * 3 + "{% endfor %}" * 3, "{{ ('a' * 1000000) | wordwrap(1) }}")
TOO_MUCH = (
    "{% set x = 'a' * 900000000 %}",
    "{{ 'a' | center(900000000) }}",
    "{{ '%900000000d' % 1 }}",
    "{{ 'a' | replace('a', 'b' * 90000000) }}",
    "{{ range(99999) | list | join(range(99999) | join) }}",
    "{{ (1,) * 200000000 }}",
    "{% set n = namespace(x='aa') %}" + LOOP + "{% set n.x = n.x + n.x %}{% endfor %}",
)
TOO_DEEP = (
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "{{" + "(" * 5000 + "1" + ")" * 5000 + "}}",
)


@pytest.fixture(scope="module")
def made() -> Any:
    return tokenizer()


@pytest.fixture(scope="module")
def template(made: Any) -> ChatTemplate:
    return ChatTemplate(made)


@pytest.fixture
def with_template(made: Any, template: ChatTemplate) -> Iterator[Any]:
    def use(source: str) -> ChatTemplate:
        made.chat_template = source
        return template

    yield use
    made.chat_template = HERMES
    assert template.rendered(TALK) == direct(made), "the next one is not harmed"


def direct(made: Any, **more: Any) -> str:
    options = {"tokenize": False, "add_generation_prompt": True, **more}
    return made.apply_chat_template(TALK, **options)


class TestSame:
    """Templates render as transformers renders them in this process."""

    @pytest.mark.parametrize(
        "source",
        [
            HERMES,
            "{{ bos_token }}{{ eos_token }}{% for m in messages %}{{ m.content }}{% endfor %}",
            "{{ messages | tojson(indent=1) }}{{ tools | tojson }}{{ strftime_now('%Y') }}",
            "{% for m in messages %}{{ 'name' in m }}{{ m.content.split('l') }}{% endfor %}",
            "{% generation %}{{ messages[0].content | upper }}{% endgeneration %}",
        ],
    )
    def test_row6_renders_as_ever(self, made: Any, with_template: Any, source: str) -> None:
        assert with_template(source).rendered(TALK) == direct(made)

    def test_row6_tools_with_any_numbers(self, made: Any, template: ChatTemplate) -> None:
        schema = {"maximum": 10**30, "minimum": -1.5, "default": None, "title": "Größe \U0001f600"}
        tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
        assert template.rendered(TALK, tools=tools) == direct(made, tools=tools)

    def test_row6_refusals(self, with_template: Any) -> None:
        refusing = with_template("{{ raise_exception('No, thanks.\nReally.') }}")
        with pytest.raises(jinja2.TemplateError, match=r"^No, thanks\.$"):
            refusing.rendered(TALK)
        with pytest.raises(TemplateDataError):
            with_template("{{ 1 // 0 }}").rendered(TALK)
        with pytest.raises(jinja2.TemplateError):
            with_template("{{ x }").rendered(TALK)

    @pytest.mark.case(6)
    def test_row6_nothing_takes_the_arguments_places(
        self, made: Any, template: ChatTemplate
    ) -> None:
        theirs = {"conversations": [], "add_generation_prompt": False, "tokenize": True}
        assert template.rendered(TALK, **theirs) == direct(made)


@pytest.mark.case(6)
class TestLimits:
    @pytest.mark.parametrize("source", TOO_LONG)
    def test_row6_time(self, with_template: Any, source: str) -> None:
        with pytest.raises(TemplateLimitError, match=r"^the model's chat template takes longer"):
            with_template(source).rendered(TALK)

    @pytest.mark.parametrize("source", TOO_MUCH)
    def test_row6_memory(self, with_template: Any, source: str) -> None:
        with pytest.raises(TemplateLimitError, match="takes more than 128 MiB of memory"):
            with_template(source).rendered(TALK)

    def test_row6_output(self, with_template: Any) -> None:
        with pytest.raises(TemplateLimitError, match=r"produces more than [0-9]+ characters$"):
            with_template("{{ 'a' * 9000000 }}").rendered(TALK)

    @pytest.mark.parametrize("source", TOO_DEEP)
    def test_row6_recursion(self, with_template: Any, source: str) -> None:
        with pytest.raises(TemplateLimitError, match="calls itself too deep"):
            with_template(source).rendered(TALK)

    def test_row6_long_conversations_are_no_attack(self, made: Any, template: ChatTemplate) -> None:
        talk = [{"role": "user", "content": "word " * 2_000}] * 400
        text = template.rendered(talk)
        options = {"tokenize": False, "add_generation_prompt": True}
        assert text == made.apply_chat_template(talk, **options)


class TestProcesses:
    def test_row6_one_that_is_killed_is_made_anew(self) -> None:
        renderer = Renderer()
        arguments: Mapping[str, Any] = {"conversations": [TALK]}
        assert renderer.render("{{ messages[0].content }}", arguments) == "Hello"
        for _ in range(3):
            before = renderer._pid
            os.kill(before, signal.SIGKILL)
            with pytest.raises(TemplateLimitError, match="ends the process"):
                renderer.render("{{ messages[0].content }}", arguments)
            assert renderer.render("{{ messages[0].content }}", arguments) == "Hello"
            assert renderer._pid != before

    def test_row6_a_silent_one_is_ended(self, monkeypatch: pytest.MonkeyPatch) -> None:
        renderer = Renderer()
        arguments: Mapping[str, Any] = {"conversations": [TALK]}
        renderer.render("x", arguments)
        os.kill(renderer._pid, signal.SIGSTOP)
        # Only the stopped process has this limit. A new one may take longer to start under load.
        with monkeypatch.context() as short, pytest.raises(TemplateLimitError):
            short.setattr(rendering, "_LATE_S", 0.3)
            renderer.render("x", arguments)
        assert renderer.render("y", arguments) == "y"

    def test_row6_they_hold_no_file_of_the_replica_and_end_with_it(self, tmp_path: Path) -> None:
        with (tmp_path / "secret").open("w") as secret_file:
            renderer = Renderer()
            renderer.render("x", {"conversations": [TALK]})
            renderer_process = psutil.Process(renderer._pid)
            keeper = renderer_process.parent()
            assert keeper
            for process in (renderer_process, keeper):
                assert secret_file.name not in [file.path for file in process.open_files()]
                assert len(list(Path(f"/proc/{process.pid}/fd").iterdir())) <= 5
        del renderer
        psutil.wait_procs([renderer_process, keeper], timeout=10)
        assert not renderer_process.is_running() and not keeper.is_running()


class TestPrompts:
    def test_row6_the_caller_is_told_whose_fault_it_is(self, tmp_path: Path) -> None:
        source = "{% if messages[0].content == 'loop' %}" + TOO_LONG[0] + "{% endif %}ok"
        tokenizer(source).save_pretrained(tmp_path)
        prompts = Prompts(tmp_path, max_length=64, vocabulary=400)
        with pytest.raises(InputError) as refused:
            prompts.prepare(
                Conversation(messages=[{"role": "user", "content": "loop"}]), "messages"
            )
        assert refused.value.code == "template_failed"
        assert refused.value.field == "messages"
        assert "the model's chat template takes longer than 1 s" in refused.value.message
        assert prompts.prepare(Conversation(messages=[TALK[0]]), "messages").text == "ok"

    def test_row6_one_that_never_ends_is_not_loaded(self, tmp_path: Path) -> None:
        tokenizer(TOO_LONG[0]).save_pretrained(tmp_path)
        with pytest.raises(TemplateLimitError):
            Prompts(tmp_path, max_length=64, vocabulary=400)
