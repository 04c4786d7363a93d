"""Chooses the form that an answer must match: a form of its text, of its calls, or of either."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from stoker.models.chat.answers.call_formats import Format
from stoker.models.chat.answers.dialect import Dialect
from stoker.models.chat.forms.faults import RequestedForm
from stoker.models.chat.forms.grammar import Grammars, asked_of, asked_of_tools, compiled
from stoker.models.chat.prompts.prompts import Prompts
from stoker.models.llm.errors import FormError
from stoker.models.llm.matcher import Matcher
from stoker.models.stages.base import InputError
from stoker.wire.generation_request import TOOLS_FIELD, Generation, Guide, Tools

_BEHIND_REASONING = ("json_object", "json_schema", "choice")
"""Forms that never describe reasoning themselves, unlike expressions and grammars."""


@dataclass(frozen=True)
class Form:
    """The form that an answer must match, before it is compiled."""

    grammar: str
    """Grammar in llguidance's own JSON, or in Lark."""
    field: str
    """The request's field of the form, for errors."""
    parts: "Sequence[Form]" = ()
    """The parts of a combined form, to find the part at fault."""
    reasoned: bool = False
    """True if the form also covers the model's reasoning."""
    asked: Sequence[RequestedForm] = ()
    """The request's schemas and grammars, to find the place at fault."""
    calls: bool = True
    """True if the answer may call tools."""


class Forms:
    """Creates the forms of one model's answers."""

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
        """Compiler of this model's forms.

        The first request with a form creates it in its thread, which takes up to a second.
        """
        plain, unseen = self._prompts.tokens_within_answers(calls=True)
        form = self._dialect.format
        literals = form.literals if form else ()
        names = {token: self._prompts.tokenizer.convert_ids_to_tokens(token) for token in plain}
        marks = {token for token in plain if any(names[token] in literal for literal in literals)}
        return self._made([token for token in plain if token not in marks], unseen)

    @cached_property
    def _text_grammars(self) -> Grammars:
        """Compiler for answers without calls, in which marks of calls are text."""
        tokens = self._prompts.tokens_within_answers(calls=False)
        if tokens == self._prompts.tokens_within_answers(calls=True):
            return self.grammars
        return self._made(*tokens)

    def _made(self, plain: Sequence[int], unseen: Sequence[int]) -> Grammars:
        ends = sorted(self._prompts.defaults.ends)
        return Grammars(self._prompts.tokenizer, self._vocabulary, ends, plain, unseen)

    @cached_property
    def problem(self) -> str | None:
        """The reason why no form can be enforced with this model, or None."""
        try:
            _ = self.grammars
        except FormError as error:
            return str(error)
        return None

    def bytes_of(self, token: int) -> bytes | None:
        """Returns the bytes that a token adds to a text. None if they depend on other tokens."""
        return None if self.problem else self.grammars.bytes_of(token)

    def form(
        self,
        generation: Generation,
        after: int | None,
        ends: str | None = None,
        *,
        may_reason: bool = False,
    ) -> Form | None:
        """Returns the form of an answer, or None if it is free. Raises `InputError`.

        Args:
            after: the token that ends the reasoning, if the prompt has begun it.
            ends: the text that ends the reasoning, if it is not a single token.
            may_reason: True if the model may begin the answer with reasoning between its own marks.
        """
        form = self._form(generation, after, ends)
        if form is None or form.reasoned or generation.guide is None:
            # Forms of calls allow reasoning themselves.
            return form
        if after is None and not (may_reason and generation.guide.kind in _BEHIND_REASONING):
            return form
        if after is not None and form.parts:
            # `calls_or` already allows the lines after the reasoning.
            return form
        reasoning = self._dialect.choice.framing.reasoning if after is None else ()
        behind = self.grammars.behind_reasoning(form.grammar, reasoning)
        return Form(behind, form.field, (form,), calls=form.calls)

    def _form(self, generation: Generation, after: int | None, ends: str | None) -> Form | None:
        guide, tools = generation.guide, generation.tools
        if guide and self.problem:
            message = f"'{guide.field}' {self.problem}."
            raise InputError(message, field=guide.field, of_item=False)
        text = self._text_form(guide) if guide else None
        if tools is None or tools.choice == "none":
            return text
        form, auto = self._dialect.format, tools.choice == "auto"
        if form is None or not self._is_enforced(form, auto=auto) or self.problem:
            if auto and tools.forms:
                raise _unenforceable_input(tools, form)
            if auto and (text is None or not self._dialect.calls):
                return text
            raise _unenforceable(text, form)
        framing = self._dialect.choice.framing
        grammar = self.grammars.calls(form, tools, framing, ends=None if after else ends)
        calls = Form(grammar, TOOLS_FIELD, asked=asked_of_tools(tools))
        if text is None:
            return calls
        either = self.grammars.calls_or(form, tools, text.grammar, reasoned=after is not None)
        return Form(either, text.field, (text, calls))

    def _is_enforced(self, form: Format, *, auto: bool) -> bool:
        # A format that was not tested is enforced only if the client requires a call.
        return form.enforced and (self._dialect.is_proven or not auto)

    def _text_form(self, guide: Guide) -> Form:
        if guide.kind == "without":
            return Form(self.grammars.without(guide.value), guide.field, reasoned=True)
        compiled_guide = compiled(guide, guide.field)
        return Form(compiled_guide, guide.field, asked=asked_of(guide), calls=False)

    def matcher(self, form: Form, after: int | None) -> Matcher:
        """Returns a matcher at a form's start. Raises `InputError` naming the field at fault."""
        try:
            behind = None if form.reasoned else after
            grammars = self.grammars if form.calls else self._text_grammars
            return grammars.matcher(form.grammar, form.field, behind)
        except InputError:
            for of_parts in (False, True):
                for requested in form.asked:
                    if (fault := requested.fault(of_parts=of_parts)) is not None:
                        raise fault from None
            for part in form.parts:
                self.matcher(part, None)
            raise


def _why_free(form: Format | None) -> str:
    if form is not None and form.why_free:
        return f"{form.why_free[0].lower()}{form.why_free[1:]}"
    certainty = "unknown" if form is None else "uncertain"
    return f"the format of this model's tool calls is {certainty}."


def _unenforceable_input(tools: Tools, form: Format | None) -> InputError:
    names = [tool["function"]["name"] for tool in tools.functions]
    field = tools.field(names.index(next(iter(tools.forms))))
    way = 'Send the tool\'s format as {"type": "text"}.'
    return InputError(
        f"'{field}' cannot be enforced: {_why_free(form)} {way}", field=field, of_item=False
    )


def _unenforceable(text: Form | None, form: Format | None) -> InputError:
    why = _why_free(form)
    if text is None:
        message, field = f"'tool_choice' cannot be enforced: {why}", "tool_choice"
    else:
        way = 'Send "tool_choice": "none", or leave out one of the two.'
        message, field = (
            f"'{text.field}' cannot be enforced together with tools: {why} {way}",
            text.field,
        )
    return InputError(message, field=field, of_item=False)
