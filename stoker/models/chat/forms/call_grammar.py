"""Grammar of calls in a model's own format.

An unquoted text ends at its mark. So the text, its mark and the next word form a single lexeme.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stoker.models.chat.answers.call_formats.arguments import (
    JsonArguments,
    KeywordArguments,
    NestedArguments,
    Parameters,
)
from stoker.models.chat.answers.call_formats.calls import UnwritableCallError
from stoker.models.chat.answers.call_formats.format import Format, behind
from stoker.models.chat.answers.call_formats.gemma_arguments import GemmaArguments
from stoker.models.chat.forms.argument_schemas import moved
from stoker.models.chat.forms.element_rules import Elements, first_word
from stoker.models.chat.forms.lark import GrammarRules, literal, not_beginning, quoted, spelt
from stoker.models.chat.forms.notation_rules import gemma, keywords


@dataclass(kw_only=True)
class Lark(GrammarRules):
    """Rules of one format's calls."""

    form: Format

    def call(self, name: str, schema: Mapping[str, Any], *, strict: bool, opened: str) -> str:
        """Returns the expression of one call. Raises `UnwritableCallError`.

        Args:
            opened: the mark that begins calls, if it was written.
        """
        self.strict = strict
        elements = list(self.form.elements)
        if opened and not elements[0].startswith("§"):
            elements[0] = behind(elements[0], opened)
        parts: list[str] = []
        for place, element in enumerate(elements):
            match element:
                case "§name":
                    parts.append(quoted(name))
                case "§id":
                    parts.append("IDENTIFIER")
                case "§object":
                    parts.append(self._object(name, schema))
                case "§args":
                    after = elements[place + 1 :]
                    parts.append(self._arguments(schema, after, strict=strict))
                    if isinstance(self.form.arguments, Parameters | NestedArguments):
                        # Their expression includes the first word after them.
                        parts.append(spelt(first_word(after)[1]))
                        break
                case _:
                    parts.append(spelt(element))
        return " ".join(part for part in parts if part) or '""'

    def other(self, names: Sequence[str]) -> str:
        """Returns the regular expression of texts that do not begin like a call."""
        if self._is_object:
            key = json.dumps(self.form.keys[0])
            return not_beginning([f"{{{key}", f"{{ {key}"])
        return not_beginning([f"[{name}(" for name in names])

    @property
    def _is_object(self) -> bool:
        return self.form.layout == "§object"

    def headed(self, name: str, schema: Mapping[str, Any], *, strict: bool) -> str:
        """Returns the expression of an answer's first call. Its first lexeme ends with the name."""
        self.strict = strict
        if self._is_object:
            key, arguments = self.form.keys
            pattern = re.escape(json.dumps(name))
            head = self.lazy(rf'/[ \n]*\{{ ?"{key}" ?: ?{pattern}/')
            return f"{head} {spelt(f', {literal(arguments)}: ')} {self.rule(schema)} SPACE? «}}»"
        head = self.lazy(rf"/[ \n]*\[{re.escape(name)}\(/")
        return f"{head} {self._arguments(schema, [], strict=strict)} «)»"

    def whole(self, name: str, schema: Mapping[str, Any], *, strict: bool) -> str:
        """Returns the rule of a call as a single JSON value, for formats that write calls as such
        values.
        """
        self.strict = strict
        key, arguments = self.form.keys
        value = {
            "type": "object",
            "properties": {key: {"const": name}, arguments: moved(schema, arguments)},
            "required": [key, arguments],
            "additionalProperties": False,
        }
        return self.rule(value)

    def _object(self, name: str, schema: Mapping[str, Any]) -> str:
        key, arguments = self.form.keys
        before, after = self.form.members
        head = f'"{key}": {json.dumps(name)}, "{arguments}": '
        optional = [f"({spelt(text)})?" if text else "" for text in (before, after)]
        parts = [quoted("{"), "SPACE?", optional[0], spelt(head)]
        parts += [self.rule(schema), optional[1], "SPACE?", quoted("}")]
        return " ".join(part for part in parts if part)

    def _arguments(self, schema: Mapping[str, Any], after: Sequence[str], *, strict: bool) -> str:
        arguments = self.form.arguments
        match arguments:
            case JsonArguments():
                return self.rule(schema)
            case Parameters():
                return Elements(self, arguments, schema, after, strict=strict).expression()
            case KeywordArguments():
                return keywords(self, schema, strict=strict)
            case GemmaArguments():
                return gemma(self, arguments, schema, strict=strict)
            case NestedArguments():
                if strict:
                    raise UnwritableCallError("this model's notation of arguments has no types")
                return self._nested(arguments, first_word(after)[0])
            case _:
                raise UnwritableCallError(
                    "this model's notation of arguments does not support enforcement"
                )

    def _nested(self, arguments: NestedArguments, word: str) -> str:
        """Returns the expression of any elements up to and including the word after them."""
        if not self.special(arguments.mark):
            return self.lazy(f"TEXT? {literal(word)}")
        end = word.removeprefix(arguments.mark)
        closing = re.escape(end).replace("/", r"\/")
        inner = self.named(rf"/(.|\n)+/ & ~/{closing}(.|\n)*/", "INNER")
        return f"({quoted(arguments.mark)} {inner})* {quoted(word)}"
