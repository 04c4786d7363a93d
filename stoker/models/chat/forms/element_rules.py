"""Rules of arguments that stand between marks, in sequence."""

from collections.abc import Mapping, Sequence
from typing import Any

from stoker.models.chat.answers.call_formats.arguments import Parameters
from stoker.models.chat.answers.call_formats.values import types
from stoker.models.chat.forms.argument_schemas import (
    TEXT_ONLY,
    choices_of,
    fields,
    object_of,
    refuse_unquoted_limits,
    with_definitions,
)
from stoker.models.chat.forms.lark import GrammarRules, either, literal, quoted, spellings, spelt

_MOST_LENGTH = 1000
_TYPES = ["number", "integer", "boolean", "object", "array", "null"]


class Elements:
    """Builds the rules of marked arguments, in the schema's order, with the first word after them.

    Raises `UnwritableCallError` if the notation cannot enforce a strict schema.
    """

    def __init__(
        self,
        lark: GrammarRules,
        way: Parameters,
        schema: Mapping[str, Any],
        after: Sequence[str],
        *,
        strict: bool,
    ) -> None:
        self.lark, self.way, self.schema, self.strict = lark, way, schema, strict
        self.end, _ = first_word(after)
        self.fields, self.required, self.others = fields(schema, strict=strict)
        self.names = list(self.fields)
        self._rules: dict[int, str | None] = {}

    def expression(self) -> str:
        """Returns the expression of all arguments."""
        return f"SPACE? ({' | '.join(self._follows(0))})"

    def _follows(self, place: int) -> Sequence[str]:
        """Returns the expressions that may follow an argument: another argument, or the end."""
        options = [f"{spelt(self.way.before)} {further}"] if (further := self._from(place)) else []
        return [*options, *([quoted(self.end)] if self._may_end(place) else [])]

    def _behind(self, place: int) -> str:
        """Returns a rule of all expressions that may follow an argument."""
        return self.lark.named(" | ".join(self._follows(place)), "b")

    def _may_end(self, place: int) -> bool:
        return not self.required.intersection(self.names[place:])

    def _from(self, place: int) -> str | None:
        """Returns the rule of the arguments from an index on, without the mark of the first."""
        if place not in self._rules:
            options: list[str] = []
            if place < len(self.names):
                name = self.names[place]
                options.append(f"{quoted(name)} {self._value(name, place + 1)}")
                if name not in self.required and (further := self._from(place + 1)):
                    options.append(further)
            elif self.others:
                # The number of other arguments is unlimited.
                self._rules[place] = name = f"others{len(self.lark.lines)}"
                self.lark.lines.append(f"{name}: KEY {self._any(place)}")
                return name
            self._rules[place] = self.lark.named(" | ".join(options), "p") if options else None
        return self._rules[place]

    def _value(self, name: str, place: int) -> str:
        schema = self.fields[name]
        kinds = types(schema, self.schema)
        choices = choices_of(schema)
        if choices is not None:
            line = "LINE? " if self.way.newline else ""
            after = self._behind(place)
            closed = f"{line}({either(choices)}) {line}{spelt(self.way.after)} SPACE? ({after})"
            return f"{self._between('string')} {closed}"
        if kinds == TEXT_ONLY:
            return f"{self._between('string')} {self._text(schema, place)}"
        if "string" in kinds:
            # A text may look like a value of another type.
            if not self.way.is_typed:
                return f"{self._between('string')} {self._text({}, place)}"
            values = self._closed(self.lark.rule(self._shared(schema)), place)
            text = f"{self._between('string')} {self._text({}, place)}"
            return f"({text} | {self._between('other')} {values})"
        if self.way.python and not self.strict and kinds & {"array", "object"}:
            return f"{self._between('other')} {self._text({}, place)}"
        value = self.lark.rule(self._shared(schema))
        if not self.way.is_typed and kinds & {"boolean", "null"}:
            value = f"({value} | {' | '.join(spellings(kinds))})"
        return f"{self._between('other')} {self._closed(value, place)}"

    def _shared(self, schema: Any) -> Any:
        return with_definitions(schema, self.schema)

    def _any(self, place: int) -> str:
        if not self.way.is_typed:
            return f"{self._between('string')} {self._text({}, place)}"
        text = f"{self._between('string')} {self._text({}, place)}"
        other = f"{self._between('other')} {self._closed(self.lark.rule(True), place)}"
        return f"({text} | {other})"

    def _between(self, kind: str) -> str:
        first, mark, rest = self.way.between.partition("§")
        if not mark:
            return self.lark.named(spelt(first), "k")
        if rest.startswith("string"):
            flag = quoted("true" if kind == "string" else "false")
            between = f"{spelt(first)} {flag} {spelt(rest.removeprefix('string'))}"
            return self.lark.named(between, "k")
        kinds = ["string"] if kind == "string" else _TYPES
        names = "|".join(quoted(name) for name in kinds)
        return self.lark.named(f"{spelt(first)} ({names}) {spelt(rest.removeprefix('type'))}", "k")

    def _closed(self, value: str, place: int) -> str:
        after = self._behind(place)
        return f"SPACE? ({value}) SPACE? {spelt(self.way.after)} SPACE? ({after})"

    def _text(self, schema: Any, place: int) -> str:
        """Returns the expression of a text, its mark and everything that may follow."""
        body = self._body(schema)
        mark, before = self.way.after, self.way.before
        if self.lark.special(mark):
            after = self._behind(place)
            return f"{body if body != 'TEXT?' else 'free'} {spelt(mark)} SPACE? ({after})"
        further = self._from(place)
        options: list[str] = []
        if further and not self.lark.special(before):
            options.append(f"{self._lexeme(body, before)} {further}")
        if self._may_end(place) and not self.lark.special(self.end):
            options.append(self._lexeme(body, self.end))
        if not options:
            after = self._behind(place)
            options.append(f"{self.lark.lazy(f'{body} {literal(mark)}')} SPACE? ({after})")
        # A text without a limit may contain other special tokens.
        return f"{'free ' if body == 'TEXT?' else ''}({' | '.join(options)})"

    def _lexeme(self, body: str, word: str) -> str:
        return self.lark.lazy(f"{body} {literal(self.way.after)} SPACE? {literal(word)}")

    def _body(self, schema: Any) -> str:
        """Returns a text's expression. Raises `UnwritableCallError` for a limit that the notation
        cannot express.
        """
        keywords = object_of(schema)
        if self.strict:
            refuse_unquoted_limits(schema)
        least, most = keywords.get("minLength", 0), keywords.get("maxLength")
        if not isinstance(most, int) or not isinstance(least, int) or most > _MOST_LENGTH:
            return "TEXT?"
        line = r"\n?" if self.way.newline else ""
        return f"/{line}(.|\\n){{{least},{most}}}{line}/"


def first_word(after: Sequence[str]) -> tuple[str, str]:
    """Joins texts and splits them after their first word."""
    text = "".join(after).lstrip()
    word = text.split()[0] if text else ""
    # Only the last literal of the layout follows the arguments.
    return word, text.removeprefix(word)
