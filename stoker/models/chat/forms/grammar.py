"""Compiles the forms of answers, which llguidance enforces while tokens are sampled.

A form comes from a client. Its size is limited before it is compiled, and llguidance limits the
work of its compiler and lexer. Compilation releases the interpreter lock.
"""

import json
import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import llguidance

from stoker.models.chat.answers.call_formats import Format, UnwritableCallError
from stoker.models.chat.answers.call_formats.framing import Framing
from stoker.models.chat.forms.argument_schemas import of_objects
from stoker.models.chat.forms.call_forms import CallForm, Offered
from stoker.models.chat.forms.call_grammar import Lark
from stoker.models.chat.forms.faults import RequestedForm, of_grammar
from stoker.models.chat.forms.json_rules import JsonRules
from stoker.models.chat.forms.strict import closed
from stoker.models.llm.errors import FormError
from stoker.models.llm.matcher import Matcher, Matchers
from stoker.models.stages.base import InputError
from stoker.wire import schema_limits as limits
from stoker.wire.generation_request import TOOLS_FIELD, Guide, Tools

NO_PARAMETERS: Mapping[str, Any] = {
    "type": "object",
    "properties": {},
    "additionalProperties": False,
}
_TEXT = re.compile("«(.*?)»", re.DOTALL)
_CLOSED_TIMES = 4
"""Maximum factor by which closing a schema's objects may enlarge it. Each object gets a keyword."""


class Grammars:
    """Compiles forms for one tokenizer."""

    def __init__(
        self,
        tokenizer: Any,
        vocabulary: int,
        ends: Sequence[int],
        plain: Sequence[int] = (),
        unseen: Sequence[int] | None = None,
    ) -> None:
        """
        Args:
            tokenizer: fast tokenizer of transformers.
            vocabulary: width of the logits.
            ends: tokens by which the model ends its answer.
            plain: added tokens that are text within an answer.
            unseen: special tokens that may occur in free text. None means all except the ends.
        """
        self._ends = frozenset(ends)
        self._unseen = None if unseen is None else frozenset(unseen)
        self._matchers = Matchers(tokenizer, vocabulary, ends, plain)
        self._tokens = self._matchers.tokens
        # Special tokens never match text in a grammar.
        self._ids = {
            token: place
            for token, place in tokenizer.get_added_vocab().items()
            if self._tokens.is_special_token(place)
        }
        longest_first = sorted(self._ids, key=len, reverse=True)
        names = "|".join(re.escape(token) for token in longest_first)
        self._special = re.compile(f"({names})") if names else None

    def bytes_of(self, token: int) -> bytes:
        return self._tokens.decode_bytes([token])

    def without(self, texts: Sequence[str]) -> str:
        """Returns the form of answers that contain none of these texts."""
        ends = set(self._tokens.eos_tokens)
        special = sorted(
            place
            for token, place in self._ids.items()
            if place not in ends and not any(text in token for text in texts)
        )
        either = "|".join(map(_regex, texts))
        lines = [
            "%llguidance {}",
            f"start: TEXT (<[{','.join(map(str, special))}]> TEXT)*" if special else "start: TEXT",
            f"TEXT: /(?s:.*)/ & ~/(?s:.*)({either})(?s:.*)/",
        ]
        return llguidance.LLMatcher.grammar_from_lark("\n".join(lines))

    def calls(
        self, form: Format, tools: Tools, framing: Framing | None = None, *, ends: str | None = None
    ) -> str:
        """Returns the form of answers with optional or required calls. Raises `InputError`.

        Args:
            framing: marks around reasoning and text.
            ends: mark that ends the reasoning that the prompt has begun. None if it has begun none,
                or if the form begins after it.
        """
        values = _call_values()
        call_form = self._call_form(form, tools, framing, values)
        with _refused():
            rules = (
                call_form.required(ends=ends) if tools.choice == "required" else call_form.free()
            )
        return llguidance.LLMatcher.grammar_from_lark(self._lark(rules, values))

    def calls_or(self, form: Format, tools: Tools, other: str, *, reasoned: bool) -> str:
        """Returns the form of answers that are tool calls only, or have another form.

        Raises `InputError`.

        Args:
            other: a result of `compiled`.
            reasoned: True if the model has just ended its reasoning. It then writes an empty line
                before the answer.
        """
        values = _call_values()
        own_form = self._call_form(form, tools, None, values)
        with _refused():
            rules = own_form.alone("@form", lines=reasoned)
        call_grammar: Any = {"lark_grammar": self._lark(rules, values)}
        return json.dumps({"grammars": [call_grammar, *_named(other, "form")]})

    def behind_reasoning(self, form: str, reasoning: Sequence[tuple[str, str]]) -> str:
        """Returns a form in which reasoning may precede the answer.

        Args:
            reasoning: pairs of marks around it. Empty: the answer starts after the reasoning.
        """
        lines = ["%llguidance {}", r"LINES: /\n{1,2}/"]
        names: list[str] = []
        for before, after in reasoning:
            names.append(f"thought{len(names)}")
            lines.append(f"{names[-1]}[lazy]: {json.dumps(before)} TEXT {json.dumps(after)}")
        if reasoning:
            lines += [r"TEXT: /(.|\n)*/", f"start: (({' | '.join(names)}) LINES?)? @answer"]
        else:
            lines.append("start: LINES? @answer")
        outer: Any = {"lark_grammar": "\n".join(lines)}
        return json.dumps({"grammars": [outer, *_named(form, "answer")]})

    def _call_form(
        self, form: Format, tools: Tools, framing: Framing | None, values: JsonRules
    ) -> CallForm:
        functions = [
            self._offered(enforced(tool["function"], tools), tools.field(place))
            for place, tool in enumerate(tools.functions)
            if tools.offers(tool) and tools.name in (None, tool["function"]["name"])
        ]
        framing = framing or Framing()
        return CallForm(
            form=form,
            # Without `strict`, clients check the arguments themselves.
            lark=Lark(
                form=form,
                json=lambda schema, strict: values.value(schema, lenient=not strict),
                special=self._begins_special,
            ),
            functions=functions,
            several=form.several and tools.parallel,
            text_tokens=self._tokens_beside(form.literals),
            thought_tokens=self._tokens_beside([*form.literals, *framing.literals]),
            framing=framing,
        )

    def _tokens_beside(self, literals: Sequence[str]) -> str:
        """Returns the special tokens, as a Lark list, that no literal contains and that end no
        answer.
        """
        numbers = [
            number
            for token, number in self._ids.items()
            if number not in self._ends
            and (self._unseen is None or number in self._unseen)
            and not any(token in literal for literal in literals)
        ]
        return f"<{_ranges(numbers)}>" if numbers else ""

    def _offered(self, function: Mapping[str, Any], field: str) -> Offered:
        strict = bool(function.get("strict"))
        try:
            objects = of_objects(function.get("parameters") or NO_PARAMETERS)
        except UnwritableCallError as error:
            place = f"'{field}' of the tool '{function['name']}'"
            message = f"{place} cannot be enforced: {error}."
            raise InputError(message, field=field, of_item=False) from error
        schema = checked(objects, field, strict=strict)
        return Offered(name=function["name"], schema=schema, strict=strict, field=field)

    def _begins_special(self, text: str) -> bool:
        return bool(self._special and self._special.match(text))

    def _lark(self, rules: str, values: JsonRules) -> str:
        return "\n".join(["%llguidance {}", self._expression(rules), *values.lines])

    def _expression(self, rule: str) -> str:
        return _TEXT.sub(lambda match: self._literal(match[1]), rule)

    def _literal(self, text: str) -> str:
        """Returns a text in Lark's notation. Special tokens become numbers."""
        parts = self._special.split(text) if self._special else [text]
        return " ".join(
            f"<[{self._ids[part]}]>" if part in self._ids else json.dumps(part)
            for part in parts
            if part
        )

    def matcher(self, grammar: str, field: str, after: int | None = None) -> Matcher:
        """Returns a matcher of a form in llguidance's JSON. Raises `InputError`.

        Args:
            after: the token after which the form applies. None: it applies from the start.
        """
        try:
            return self._matchers.matcher(grammar, after)
        except FormError as error:
            raise _refusal(str(error), field) from error


def asked_of(guide: Guide) -> Sequence[RequestedForm]:
    """Returns the schemas, expressions and grammars of a client's form."""
    match guide.kind:
        case "json_schema":
            value = closed(guide.value) if guide.strict else guide.value
            return [RequestedForm("json_schema", value, guide.field)]
        case "regex" | "grammar":
            return [RequestedForm(guide.kind, guide.value, guide.field)]
        case _:
            return []


def asked_of_tools(tools: Tools) -> Sequence[RequestedForm]:
    """Returns the schemas of the functions that the answer may call."""
    requested: list[RequestedForm] = []
    for place, tool in enumerate(tools.functions):
        function = enforced(tool["function"], tools)
        schema, strict = function.get("parameters"), bool(function.get("strict"))
        if schema and tools.offers(tool) and tools.name in (None, function["name"]):
            requested.append(
                RequestedForm(
                    "json_schema",
                    closed(schema) if strict else schema,
                    tools.field(place),
                    lenient=not strict,
                    tool=function["name"],
                )
            )
    return requested


def enforced(function: Mapping[str, Any], tools: Tools) -> Mapping[str, Any]:
    """Returns a function with the schema that its arguments must match."""
    form = tools.forms.get(function["name"])
    return function if form is None else {**function, "parameters": form, "strict": True}


def compiled(guide: Guide, field: str) -> str:
    """Returns a client's form as llguidance's JSON. Raises `InputError` naming the field."""
    value: Any = guide.value
    match guide.kind:
        case "json_object":
            return json_grammar({"type": "object"})
        case "json_schema":
            return json_grammar(checked(value, field, strict=guide.strict))
        case "choice":
            return llguidance.LLMatcher.grammar_from_lark(
                "start: " + " | ".join(json.dumps(choice) for choice in value)
            )
        case "regex":
            _check_length(value, field)
            return llguidance.LLMatcher.grammar_from_regex(value)
        case "grammar":
            _check_length(value, field)
            try:
                return llguidance.grammar_from("grammar", value)
            except ValueError as error:
                raise _refusal(f"cannot be enforced: {of_grammar(value)}", field) from error
        case "without":
            raise ValueError(
                "a form of the kind 'without' needs the tokenizer: use Grammars.without"
            )


def json_grammar(schema: Mapping[str, Any]) -> str:
    """Returns a JSON schema as a Lark grammar. `Matchers` checks it during compilation."""
    rules = JsonRules()
    lines = [f"start: {rules.value(schema, lenient=False)}", *rules.lines]
    return llguidance.LLMatcher.grammar_from_lark("\n".join(lines))


def _call_values() -> JsonRules:
    # Some models write a space there, others do not.
    return JsonRules(comma=", ?", colon=": ?")


def checked(schema: Mapping[str, Any], field: str, *, strict: bool) -> Mapping[str, Any]:
    """Returns a schema as it is enforced. Raises `InputError` if it is too large to compile."""
    if problem := limits.excess(schema):
        raise _refusal(problem, field)
    if not strict:
        return schema
    schema = closed(schema)
    if problem := limits.excess(schema, _CLOSED_TIMES):
        raise _refusal(f"{problem} once its objects allow no further members", field)
    return schema


@contextmanager
def _refused() -> Generator[None]:
    """Converts an `UnwritableCallError` into an `InputError` that names the schema's field."""
    try:
        yield
    except UnwritableCallError as error:
        raise _refusal(f"cannot be enforced: {error}", error.field or TOOLS_FIELD) from error


def _ranges(numbers: Sequence[int]) -> str:
    """Returns numbers as llguidance lists tokens: `[1,5-9]`."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return f"[{','.join(str(a) if a == b else f'{a}-{b}' for a, b in ranges)}]"


def _regex(text: str) -> str:
    """Returns a regular expression of a text, with everything but letters and digits escaped."""
    return "".join(
        character if character.isascii() and character.isalnum() else f"\\x{{{ord(character):x}}}"
        for character in text
    )


def _named(grammar: str, name: str) -> list[Any]:
    """Returns the entries of a grammar in llguidance's JSON, named so that others can refer to
    it.
    """
    if not grammar.startswith("{"):
        return [{"name": name, "lark_grammar": grammar}]
    first, *rest = json.loads(grammar)["grammars"]
    return [{**first, "name": name}, *rest]


def _check_length(text: str, field: str) -> None:
    if len(text) > limits.MAX_CHARS:
        raise _refusal(limits.too_long(text), field)


def _refusal(what: str, field: str) -> InputError:
    return InputError(f"'{field}' {what}.", field=field, of_item=False)
