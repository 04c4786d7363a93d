"""Determines how a model writes answers. Runs once, when the model loads."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, cast

from stoker.models.chat.answers.call_formats.format import Format
from stoker.models.chat.answers.declared_reading import Declared, DeclaredReader
from stoker.models.chat.answers.probing import (
    FormatChoice,
    Habits,
    Probe,
    Render,
    choose,
    ends_of_reasoning,
    reader_of,
)
from stoker.models.chat.answers.reading import Reader
from stoker.wire.notices import Notice

log = logging.getLogger(__name__)

AnyReader = Reader | DeclaredReader
_END_OF_REASONING = "</think>"


class Dialect:
    """Notation of a model's answers, read from its tokenizer and its chat template."""

    def __init__(self, tokenizer: Any, render: Render | None = None) -> None:
        """
        Args:
            render: renders the known calls. None means that the format is chosen by marks alone.
        """
        self._tokens = tokenizer.backend_tokenizer
        source = _source(tokenizer)
        thinks = self._tokens.token_to_id(_END_OF_REASONING) is not None
        self._declared = _declared(tokenizer)
        probe = Probe(render) if render and "tool" in source else None
        added = list(tokenizer.get_added_vocab())
        self.choice: FormatChoice = choose(
            source, probe, tokens=added, thinks=thinks, declared=self._declared
        )
        self._takes_tools = "tools" in source

    @property
    def format(self) -> Format | None:
        """Format in which calls are written and enforced. None if it is unknown."""
        return self.choice.form

    @property
    def is_proven(self) -> bool:
        """True if the format correctly read the calls that the chat template wrote."""
        return self.choice.is_proven

    @property
    def calls(self) -> bool:
        """True if the model's tool calls can be read."""
        return self.choice.form is not None or self.choice.is_declared

    @property
    def habits(self) -> Habits:
        return self.choice.habits

    @property
    def notices(self) -> Sequence[Notice]:
        """Notices for the model's owner: calls are not read, or their format was not tested."""
        if not self._takes_tools or self.choice.is_proven:
            return []
        form = self.choice.form
        if form is None and not self.choice.is_declared:
            return [Notice("tool_calls_not_read", _NOT_READ)]
        name = form.name if form else "response_template"
        return [Notice("tool_calls_not_tried", _NOT_TRIED.format(name))]

    def shows(self, token: str) -> bool:
        """Returns True if a special token is a mark that readers need."""
        form = self.choice.form
        literals = [*self.choice.framing.literals, *(form.literals if form else ())]
        return any(token in literal for literal in literals)

    def end_of_reasoning(self, prompt: str) -> int | None:
        """Returns the token that ends the reasoning that a prompt has begun. None if it has begun
        none.
        """
        ends = ends_of_reasoning(self.choice.framing, prompt)
        return self._tokens.token_to_id(ends[0]) if ends else None

    def reader(
        self, prompt: str, *, tools: Sequence[Mapping[str, Any]], either: bool = False
    ) -> AnyReader | None:
        """Returns a reader of one answer. None if the answer is only text.

        Args:
            prompt: its end may have begun the reasoning already.
            tools: functions that may be called, as the client sent them.
            either: if True, the answer consists either only of calls or only of text.
        """
        if tools:
            return reader_of(self.choice, prompt, tools, self._declared, either=either)
        framing = self.choice.framing
        if not framing.literals:
            return None
        return reader_of(FormatChoice(framing=framing), prompt, (), either=either)

    def may_reason(self, prompt: str) -> bool:
        """Returns True if an answer to a prompt may begin with reasoning between marks."""
        pairs = self.choice.framing.reasoning
        marks = tuple(mark.strip() for pair in pairs for mark in pair)
        return bool(pairs) and not prompt.rstrip().endswith(marks)

    def ends(self, prompt: str) -> str | None:
        """Returns the mark that ends the reasoning that a prompt has begun. None if it has begun
        none.
        """
        return next(iter(ends_of_reasoning(self.choice.framing, prompt)), None)


_NOT_READ = (
    "No reader for this model's tool calls was identified: its chat template "
    "accepts tools, but renders no calls in a known format. With 'tool_choice': "
    "'auto', calls remain text in the content. 'required' and a named function "
    "are rejected."
)
_NOT_TRIED = (
    "Tool calls are read in the format '{}', which could not be tested: the "
    "chat template renders no calls of the assistant. With 'tool_choice': "
    "'auto', the format is not enforced."
)


def _source(tokenizer: Any) -> str:
    """Returns the chat template. If it has several, the one for tools comes first."""
    template: Any = getattr(tokenizer, "chat_template", None) or ""
    if isinstance(template, dict):
        named = cast("Mapping[str, str]", template)
        ordered = [named["tool_use"]] if "tool_use" in named else []
        return "\n".join([*ordered, *(text for name, text in named.items() if name != "tool_use")])
    return str(template)


def _declared(tokenizer: Any) -> Declared | None:
    template: Any = getattr(tokenizer, "response_template", None)
    if template is None:
        return None
    try:
        return Declared(template)
    except ValueError as error:
        log.warning("The declared response template is not used: %s", error)
        return None
