"""Which form an answer has to have: that of its text, that of its calls, or either."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from stoker.chat.answers.reading import Dialect
from stoker.chat.forms.grammar import Grammars, compiled
from stoker.chat.prompts.prompts import Prompts
from stoker.llm.matcher import Matcher
from stoker.stages.base import InputError
from stoker.wire.generation_request import TOOLS_FIELD, Generation


@dataclass(frozen=True)
class Form:
    """What an answer has to be, before it is compiled."""

    grammar: str
    """In llguidance's own JSON, or in Lark."""
    field: str
    """The request's field that asks for it, for errors."""
    parts: "Sequence[Form]" = ()
    """What it is made of, to find the one that is at fault."""


class Forms:
    """The forms of one model's answers."""

    def __init__(self, prompts: Prompts, dialect: Dialect, vocabulary: int) -> None:
        """
        Args:
            vocabulary: width of the logits.
        """
        self._prompts = prompts
        self._dialect = dialect
        self._vocabulary = vocabulary

    @cached_property
    def grammars(self) -> Grammars:
        """Made by the thread that needs it first, when a request needs it: it takes a second where
        a vocabulary is large, and not every model is ever asked for a form.
        """
        ends = sorted(self._prompts.defaults.ends)
        return Grammars(self._prompts.tokenizer, self._vocabulary, ends)

    def bytes_of(self, token: int) -> bytes:
        return self.grammars.bytes_of(token)

    def form(self, generation: Generation, after: int | None) -> Form | None:
        """What an answer has to be. Raises `InputError`.

        Args:
            after: the token that ends the reasoning, where the prompt has begun it.
        """
        guide, tools = generation.guide, generation.tools
        text = Form(compiled(guide, guide.field), guide.field) if guide else None
        if tools is None or tools.choice == "none":
            return text
        form = self._dialect.format
        if form is None:
            if not self._dialect.calls and tools.choice == "auto":
                return text
            if text is None and tools.choice == "auto":
                return None
            raise _unenforceable(text)
        calls = Form(self.grammars.calls(form, tools), TOOLS_FIELD)
        if text is None:
            return calls
        either = self.grammars.calls_or(form, tools, text.grammar, reasoned=after is not None)
        return Form(either, text.field, (text, calls))

    def matcher(self, form: Form, after: int | None) -> Matcher:
        """The start of an answer's form. Raises `InputError` naming the field at fault."""
        try:
            return self.grammars.matcher(form.grammar, form.field, after)
        except InputError:
            for part in form.parts:
                self.grammars.matcher(part.grammar, part.field)
            raise


def _unenforceable(text: Form | None) -> InputError:
    why = "it is not known how this model writes calls."
    if text is None:
        what, field = f"'tool_choice' cannot be enforced: {why}", "tool_choice"
    else:
        way = 'Send "tool_choice": "none", or leave one of the two out.'
        what, field = f"'{text.field}' cannot be enforced beside tools: {why} {way}", text.field
    return InputError(what, field=field, of_item=False)
