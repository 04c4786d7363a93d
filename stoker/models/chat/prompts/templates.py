"""A tokenizer's chat template, and what it is given."""

import contextlib
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, cast

import jinja2

from stoker.models.chat.prompts.rendering import Renderer, TemplateDataError, TemplateLimitError

_PROBE = "probe"
_PROBE_TEXT = "a text of a part"
_PROBE_PART = {"type": "text", "text": _PROBE_TEXT}
_COMMENTS = re.compile(r"\{#.*?#\}", re.DOTALL)
_CODE = re.compile(r"\{[{%](.*?)[%}]\}", re.DOTALL)
_STRINGS = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
_NAMES = re.compile(r"(?<![\w.])[A-Za-z_]\w*")
_FUNCTION: Mapping[str, Any] = {"name": _PROBE, "arguments": {_PROBE: _PROBE}}
_CALL: Mapping[str, Any] = {"id": "call00001", "type": "function", "function": _FUNCTION}
_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}
_TOOL: Mapping[str, Any] = {
    "type": "function",
    "function": {"name": _PROBE, "description": _PROBE, "parameters": _PARAMETERS},
}
_GREETING = ({"role": "user", "content": "Hello"},)


class ChatTemplate:
    """Renders conversations, as `apply_chat_template` of transformers does without tokenizing."""

    def __init__(self, tokenizer: Any, renderer: Renderer | None = None) -> None:
        """
        Args:
            tokenizer: may get another template afterwards.
            renderer: where it runs; None: in processes of its own.
        """
        self._tokenizer = tokenizer
        self._renderer = renderer or Renderer()

    @property
    def source(self) -> str:
        """The template, or all there are by their names; nothing, where there is none."""
        return str(getattr(self._tokenizer, "chat_template", None) or "")

    def reads(self, name: str) -> bool:
        """Returns whether the template reads a variable of that name."""
        own: Any = getattr(self._tokenizer, "chat_template", None) or ""
        sources = cast("dict[str, str]", own).values() if isinstance(own, dict) else [str(own)]
        return any(name in _names(source) for source in sources)

    def rendered(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Any] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        begins_answer: bool = True,
        continues: bool = False,
        **further: Any,
    ) -> str:
        """The text of a conversation.

        Args:
            documents: what the template is to show the model beside the messages.
            begins_answer: whether it ends with what the model's answer begins with.
            continues: whether it ends with the last message's own text, for more of it.
            further: what this template knows beside messages and tools. Never a request's own
                names: they would take the place of the arguments here.

        Raises:
            jinja2.TemplateError, TemplateDataError, TemplateLimitError: as `Renderer.render`.
        """
        given = [
            {name: one for name, one in message.items() if one is not None} for message in messages
        ]
        return self._renderer.render(
            self._tokenizer.get_chat_template(None, tools),
            {
                **further,
                **self._tokenizer.special_tokens_map,
                "conversations": [given],
                "tools": tools,
                "documents": documents,
                "add_generation_prompt": begins_answer,
                "continue_final_message": continues,
            },
        )

    def check(self) -> None:
        """Try it. Raises `TemplateLimitError` for one that takes too much for a greeting."""
        if self.source:
            self._tried(_GREETING)

    def greeting(self) -> str | None:
        """The text of a short conversation; None: there is no template, or it refuses that."""
        return self._tried(_GREETING, begins_answer=True) if self.source else None

    def takes_parts(self, role: str = "user") -> bool:
        """Tries whether a message of this role may have a list of parts as its content."""
        written = self._tried(_with_parts(role))
        # A template that knows texts only writes the list down as Python would.
        return written is not None and _PROBE_TEXT in written and "'type'" not in written

    def ends_of_turn(self) -> list[int]:
        """The token that stands right behind an answer, told by a trial; empty: there is none."""
        if not self.source:
            return []
        behind = ""
        for answer in (_PROBE_TEXT, [_PROBE_PART]):
            found = self._tried([*_GREETING, {"role": "assistant", "content": answer}]) or ""
            if _PROBE_TEXT in found:
                behind = found.rpartition(_PROBE_TEXT)[2].lstrip()
                break
        added: Mapping[int, Any] = self._tokenizer.added_tokens_decoder
        texts = {token: one.content.strip() for token, one in added.items()}
        closing = [token for token, text in texts.items() if text and behind.startswith(text)]
        return sorted(closing, key=lambda token: -len(texts[token]))[:1]

    def structure(self, *, calls: bool) -> str:
        """Returns conversations as the template writes them.

        Args:
            calls: with tools, calls of them and their outputs.
        """
        if not self.source:
            return ""
        asked = {"role": "user", "content": _PROBE}
        system = {"role": "system", "content": _PROBE}
        answer = {"role": "assistant", "content": _PROBE}
        output = {"role": "tool", "tool_call_id": _CALL["id"], "name": _PROBE, "content": _PROBE}
        called = [asked, {**answer, "tool_calls": [_CALL]}, output, answer]
        # One by one: a template refuses conversations that it does not know.
        texts: list[str | None] = []
        for messages, tools in (
            ([asked, answer, asked], None),
            ([system, asked, answer], None),
            *([(called, [_TOOL])] if calls else []),
        ):
            with contextlib.suppress(TemplateLimitError):
                texts.append(self._tried(messages, begins_answer=True, tools=tools))
        return "\n".join(text for text in texts if text)

    def _tried(
        self, messages: Sequence[Mapping[str, Any]], *, begins_answer: bool = False, **more: Any
    ) -> str | None:
        """Returns None if the template refuses the messages."""
        try:
            return self.rendered(messages, begins_answer=begins_answer, **more)
        except (jinja2.TemplateError, TemplateDataError):
            return None


def _with_parts(role: str) -> list[dict[str, Any]]:
    """Returns a conversation whose last message has this role, and parts."""
    asked: dict[str, Any] = {"role": "user", "content": "Hello"}
    before: dict[str, list[dict[str, Any]]] = {
        "assistant": [asked],
        "tool": [asked, {"role": "assistant", "content": "", "tool_calls": [_CALL]}],
    }
    after = [asked] if role == "system" else []
    return [*before.get(role, []), {"role": role, "content": [_PROBE_PART]}, *after]


class Trials:
    """Renders known conversations. A template that meets a limit is not tried again."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self._is_over = False

    def __call__(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any], *, begins_answer: bool
    ) -> str | None:
        """Returns the text of a conversation; None if the template refuses it."""
        if self._is_over:
            return None
        try:
            return self._template.rendered(messages, tools=tools, begins_answer=begins_answer)
        except TemplateLimitError:
            self._is_over = True
        except (jinja2.TemplateError, TemplateDataError, LookupError, TypeError, ValueError):
            pass
        return None


@lru_cache(maxsize=8)
def _names(source: str) -> frozenset[str]:
    """Returns the names in a template's code, those of its own variables included."""
    code = _CODE.findall(_COMMENTS.sub("", source))
    return frozenset(_NAMES.findall(" ".join(_STRINGS.sub("''", one) for one in code)))
