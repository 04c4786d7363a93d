"""Chat template of a tokenizer, and its inputs."""

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
            tokenizer: its template may be replaced later.
            renderer: renderer of the template. None creates a new one with its own processes.
        """
        self._tokenizer = tokenizer
        self._renderer = renderer or Renderer()
        self._takes_parts: dict[str, bool] = {}
        """Maps a role to True if its messages may have parts. Filled when a role is first tried."""

    @property
    def source(self) -> str:
        """The template, or all templates by their names. Empty if the tokenizer has none."""
        return str(getattr(self._tokenizer, "chat_template", None) or "")

    def reads(self, name: str) -> bool:
        """Returns True if the template reads a variable of that name."""
        template: Any = getattr(self._tokenizer, "chat_template", None) or ""
        sources = (
            cast("dict[str, str]", template).values()
            if isinstance(template, dict)
            else [str(template)]
        )
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
        """Returns the text of a conversation.

        Args:
            documents: documents that the template shows to the model in addition to the messages.
            begins_answer: True if the text ends with the beginning of the model's answer.
            continues: True if the text ends with the last message's own text, so that the model
                continues it.
            further: further variables of this template. Must not contain names from a request,
                which would replace the arguments here.

        Raises:
            jinja2.TemplateError, TemplateDataError, TemplateLimitError: see `Renderer.render`.
        """
        cleaned = [
            {name: value for name, value in message.items() if value is not None}
            for message in messages
        ]
        return self._renderer.render(
            self._tokenizer.get_chat_template(None, tools),
            {
                **further,
                **self._tokenizer.special_tokens_map,
                "conversations": [cleaned],
                "tools": tools,
                "documents": documents,
                "add_generation_prompt": begins_answer,
                "continue_final_message": continues,
            },
        )

    def check(self) -> None:
        """Tries the template. Raises `TemplateLimitError` if it exceeds a limit for a greeting."""
        if self.source:
            self._tried(_GREETING)

    def greeting(self) -> str | None:
        """Returns the text of a short conversation. None without a template, or if the template
        rejects it.
        """
        return self._tried(_GREETING, begins_answer=True) if self.source else None

    def takes_parts(self, role: str = "user") -> bool:
        """Returns True if a message of this role may have a list of parts as its content. Tries
        it.
        """
        if role not in self._takes_parts:
            written = self._tried(_with_parts(role))
            # A template that supports only texts writes the list in Python's notation.
            takes = written is not None and _PROBE_TEXT in written and "'type'" not in written
            self._takes_parts[role] = takes
        return self._takes_parts[role]

    def shows_later_system(self) -> bool:
        """Returns True if the template shows a system message after the first message. Tries it."""
        system = {"role": "system", "content": _PROBE}
        later = {"role": "system", "content": _PROBE_TEXT}
        written = self._tried([system, *_GREETING, later], begins_answer=True) or ""
        return _PROBE in written and _PROBE_TEXT in written

    def ends_of_turn(self) -> list[int]:
        """Returns the token directly after an answer, determined by a trial. Empty if none is
        found.
        """
        if not self.source:
            return []
        behind = ""
        for answer in (_PROBE_TEXT, [_PROBE_PART]):
            written = self._tried([*_GREETING, {"role": "assistant", "content": answer}]) or ""
            if _PROBE_TEXT in written:
                behind = written.rpartition(_PROBE_TEXT)[2].lstrip()
                break
        added: Mapping[int, Any] = self._tokenizer.added_tokens_decoder
        texts = {token: added_token.content.strip() for token, added_token in added.items()}
        closing = [token for token, text in texts.items() if text and behind.startswith(text)]
        return sorted(closing, key=lambda token: -len(texts[token]))[:1]

    def structure(self, *, calls: bool) -> str:
        """Returns conversations as the template writes them.

        Args:
            calls: if True, includes tools, calls of them and their outputs.
        """
        if not self.source:
            return ""
        question = {"role": "user", "content": _PROBE}
        system = {"role": "system", "content": _PROBE}
        answer = {"role": "assistant", "content": _PROBE}
        output = {"role": "tool", "tool_call_id": _CALL["id"], "name": _PROBE, "content": _PROBE}
        called = [question, {**answer, "tool_calls": [_CALL]}, output, answer]
        # Rendered separately, because a template rejects conversations that it does not support.
        texts: list[str | None] = []
        for messages, tools in (
            ([question, answer, question], None),
            ([system, question, answer], None),
            *([(called, [_TOOL])] if calls else []),
        ):
            with contextlib.suppress(TemplateLimitError):
                texts.append(self._tried(messages, begins_answer=True, tools=tools))
        return "\n".join(text for text in texts if text)

    def _tried(
        self, messages: Sequence[Mapping[str, Any]], *, begins_answer: bool = False, **more: Any
    ) -> str | None:
        """Returns the text of the messages. None if the template rejects them."""
        try:
            return self.rendered(messages, begins_answer=begins_answer, **more)
        except (jinja2.TemplateError, TemplateDataError):
            return None


def _with_parts(role: str) -> list[dict[str, Any]]:
    """Returns a conversation with a message of this role and a list of parts as its content."""
    question: dict[str, Any] = {"role": "user", "content": "Hello"}
    before: dict[str, list[dict[str, Any]]] = {
        "assistant": [question],
        "tool": [question, {"role": "assistant", "content": "", "tool_calls": [_CALL]}],
    }
    after = [question] if role == "system" else []
    return [*before.get(role, []), {"role": role, "content": [_PROBE_PART]}, *after]


class TrialRenderings:
    """Renders known conversations. After a template exceeds a limit, it is not tried again."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self._is_over = False

    def __call__(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any], *, begins_answer: bool
    ) -> str | None:
        """Returns the text of a conversation. None if the template rejects it."""
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
    """Returns the names in a template's code, including its own variables."""
    code = _CODE.findall(_COMMENTS.sub("", source))
    return frozenset(_NAMES.findall(" ".join(_STRINGS.sub("''", block) for block in code)))
