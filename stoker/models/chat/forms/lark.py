"""Building blocks of grammars in llguidance's Lark: texts, lexemes and named rules.

Texts in rules stand between `«` and `»`. `Grammars` later replaces their special tokens by numbers.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

Rule = Callable[[Any, bool], str]
"""Returns the Lark expression of a JSON schema, which may be strict."""

SHARED = r"""
TEXT: /(.|\n)+/
SPACE: /[ \n]{1,12}/
LINE: "\n"
KEY: /[^<>"=\s]{1,64}/
IDENTIFIER: /[A-Za-z0-9_.:\-]{1,64}/
QUOTED: /'([^'\\]|\\.)*'/
NUMBER: /-?[0-9]+(\.[0-9]+)?([eE][+\-]?[0-9]+)?/
WORD: "true" | "false" | "null" | "True" | "False" | "None"
pylist: "[" (py ("," SPACE? py)*)? "]"
pydict: "{" (py ":" SPACE? py ("," SPACE? py ":" SPACE? py)*)? "}"
py: QUOTED | pystring | NUMBER | WORD | pylist | pydict
pystring: %json {"type": "string", "x-guidance": {"json_allow_general_unicode_escapes": true}}
"""
EMPTY = '""'


@dataclass(kw_only=True)
class GrammarRules:
    """Collects the named rules of a grammar."""

    json: Rule
    special: Callable[[str], bool]
    """Returns True if a text begins with a special token."""
    lines: list[str] = field(default_factory=list[str])
    known: dict[str, str] = field(default_factory=dict[str, str])
    strict: bool = False
    """True if the current function's schema is strict."""

    def rule(self, schema: Any) -> str:
        """Returns the rule of a JSON value that fits a schema. Equal schemas share a rule."""
        return self.named(self.json(schema, self.strict), "j")

    def named(self, expression: str, prefix: str = "r") -> str:
        """Returns the name of a rule with this expression."""
        if expression not in self.known:
            self.known[expression] = name = f"{prefix}{len(self.known)}"
            self.lines.append(f"{name}: {expression}")
        return self.known[expression]

    def lazy(self, expression: str) -> str:
        """Returns the name of a lexeme that ends as soon as it can."""
        key = f"[lazy] {expression}"
        if key not in self.known:
            self.known[key] = name = f"lazy{len(self.known)}"
            self.lines.append(f"{name}[lazy]: {expression}")
        return self.known[key]

    def split(self, mark: str) -> tuple[str, str]:
        """Splits a mark before its first special token and returns both parts."""
        place = next((at for at in range(len(mark)) if self.special(mark[at:])), len(mark))
        return mark[:place], mark[place:]


def spelt(text: str) -> str:
    """Returns a text's expression. Its white space is optional, and `§id` is an identifier."""
    parts: list[str] = []
    for piece in re.split(r"(\s+|§id)", text):
        if piece == "§id":
            parts.append("IDENTIFIER")
        elif piece.isspace():
            parts.append("SPACE?")
        elif piece:
            parts.append(quoted(piece))
    return " ".join(parts)


def sequence(
    lark: GrammarRules, members: Sequence[tuple[str, bool]], others: str | None, separator: str
) -> str:
    """Returns the expression of members in order. Optional members may be missing.

    Args:
        members: the expression of each member, and True if it is required.
        others: the expression of additional members. None allows none.
    """

    def rest(place: int, *, is_first: bool) -> str | None:
        """Returns the members from a place on, or None if none are left."""
        gap = "" if is_first else f"{separator} "
        if place == len(members):
            if others is None:
                return None
            return lark.named(f"({gap}{others} ({separator} {others})*)?", "m")
        body, required = members[place]
        after = [rest(place + 1, is_first=False), rest(place + 1, is_first=is_first)]
        here = f"{gap}{body} {after[0] or ''}"
        if required:
            return lark.named(here, "m")
        return lark.named(f"({here}) | ({after[1] or EMPTY})", "m")

    return rest(0, is_first=True) or ""


def not_beginning(literals: Sequence[str]) -> str:
    """Returns the regular expression of texts that begin with none of the literals.

    White space before a literal is ignored. A complement would be shorter, but llguidance detects
    too late that it can no longer match.
    """
    root = _branches(literals).removesuffix("?").replace("[^", r"[^ \n", 1)
    return rf"[ \n]+|[ \n]*{root}".replace("/", r"\/")


def _branches(literals: Sequence[str]) -> str:
    letters = sorted({text[0] for text in literals if text})
    options = [rf"[^{''.join(map(_escaped, letters))}](.|\n)*"]
    for letter in letters:
        rest = [text[1:] for text in literals if text.startswith(letter)]
        if all(rest):
            options.append(f"{_escaped(letter)}{_branches(rest)}")
    return f"({'|'.join(options)})?"


def _escaped(text: str) -> str:
    return re.escape(text).replace("\\ ", " ")


def quoted(text: str) -> str:
    """Returns a text's expression. The text may contain special tokens."""
    return f"«{text}»"


def literal(text: str) -> str:
    """Returns the expression of a text without special tokens."""
    return json.dumps(text)


def spellings(kinds: frozenset[str]) -> list[str]:
    """Returns Python's words for values of these JSON types."""
    words = ["True", "False"] if "boolean" in kinds else []
    return [literal(word) for word in [*words, *(["None"] if "null" in kinds else [])]]


def either(choices: Sequence[Any]) -> str:
    """Returns the expression of a choice between texts."""
    return " | ".join(literal(choice) if choice else EMPTY for choice in choices)
