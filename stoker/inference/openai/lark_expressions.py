"""Regular expressions of grammars in Lark's notation.

The input of a custom tool is written as a JSON string. A regular expression can be enforced within
one, so grammars without recursion can be, too.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

MAX_CHARS = 32 << 10
"""Maximum length of an expression."""
_MAX_DEPTH = 32
_TOKEN = re.compile(
    r"""
    (?P<space>[ \t]+|//[^\n]*|\#[^\n]*|\\\r?\n)
    |(?P<line>\r?\n)
    |(?P<string>"(?:\\.|[^"\\\n])*"i?)
    |(?P<regex>/(?!/)(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\n])+/[imslux]*)
    |(?P<name>[!?]?[_A-Za-z][_A-Za-z0-9]*(?:\.\d+(?=\s*:))?)
    |(?P<directive>%[a-z]+)
    |(?P<number>\d+)
    |(?P<sign>->|\.\.|[][()|?*+~:,.])
    """,
    re.VERBOSE,
)
_COMMON: Mapping[str, str] = {
    "CNAME": r"[_A-Za-z][_A-Za-z0-9]*",
    "CR": r"\r",
    "DECIMAL": r"(?:[0-9]+\.[0-9]*|\.[0-9]+)",
    "DIGIT": r"[0-9]",
    "ESCAPED_STRING": r'"(?:[^"\\\n]|\\[^\n])*"',
    "FLOAT": r"(?:[0-9]+[eE][+-]?[0-9]+|(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)",
    "HEXDIGIT": r"[0-9a-fA-F]",
    "INT": r"[0-9]+",
    "LCASE_LETTER": r"[a-z]",
    "LETTER": r"[A-Za-z]",
    "LF": r"\n",
    "NEWLINE": r"(?:\r?\n)+",
    "NUMBER": r"(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+)(?:[eE][+-]?[0-9]+)?",
    "SIGNED_INT": r"[+-]?[0-9]+",
    "SIGNED_NUMBER": r"[+-]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+)(?:[eE][+-]?[0-9]+)?",
    "UCASE_LETTER": r"[A-Z]",
    "WORD": r"[A-Za-z]+",
    "WS": r"[ \t\f\r\n]+",
    "WS_INLINE": r"[ \t]+",
}
"""Lark's library of terminals."""


class LarkError(Exception):
    """The grammar has no regular expression. The message follows 'cannot be enforced:'."""


class _LarkToken(NamedTuple):
    kind: str
    text: str


def expression_of(grammar: str) -> str:
    """Returns the regular expression of the texts that a grammar describes.

    Raises `LarkError`.
    """
    return _Grammar(grammar).expression("start", ())


class _Grammar:
    def __init__(self, text: str) -> None:
        self._rules: dict[str, Sequence[_LarkToken]] = {}
        self._expressions: dict[str, str] = {}
        for statement in _statements(_tokens(text)):
            self._add(statement)

    def _add(self, statement: Sequence[_LarkToken]) -> None:
        first = statement[0]
        if first == _LarkToken("directive", "%import"):
            self._import(statement[1:])
        elif first.kind == "directive":
            raise LarkError(f"{first.text} is not supported")
        elif first.kind != "name" or len(statement) < 3 or statement[1].text != ":":
            raise LarkError(f"'{first.text[:40]}' does not begin a rule such as 'name: …'")
        else:
            name = first.text.lstrip("!?").partition(".")[0]
            if name in self._rules:
                raise LarkError(f"the rule '{name}' occurs twice")
            self._rules[name] = statement[2:]

    def _import(self, tokens: Sequence[_LarkToken]) -> None:
        texts = [token.text for token in tokens]
        names = [text for text in texts[1:] if text not in "(),."]
        if texts[:1] != ["common"] or not names:
            raise LarkError("only terminals of 'common' can be imported")
        alias = names[-1] if "->" in names else None
        for name in names[:1] if alias else names:
            if name not in _COMMON:
                raise LarkError(f"common has no supported terminal '{name[:40]}'")
            self._expressions[alias or name] = f"(?:{_COMMON[name]})"

    def expression(self, name: str, within: tuple[str, ...]) -> str:
        """
        Args:
            within: rules that refer to this one.
        """
        if name in self._expressions:
            return self._expressions[name]
        if name in within:
            raise LarkError(f"the rule '{name}' is recursive")
        if name not in self._rules:
            raise LarkError(f"the rule '{name[:40]}' is missing")
        if len(within) >= _MAX_DEPTH:
            raise LarkError(f"rules refer to each other more than {_MAX_DEPTH} times in a row")
        inner = (*within, name)
        parser = _Rule(self._rules[name], lambda other: self.expression(other, inner))
        self._expressions[name] = parser.parse()
        return self._expressions[name]


class _Rule:
    """Parser of the right side of one rule."""

    def __init__(self, tokens: Sequence[_LarkToken], refer: Callable[[str], str]) -> None:
        self._tokens = [*tokens, _LarkToken("end", "the end of a rule")]
        self._refer = refer
        self._at = 0
        self._depth = 0

    def parse(self) -> str:
        expression = self._alternatives()
        if self._next.kind != "end":
            raise LarkError(f"'{self._next.text[:40]}' is unexpected")
        return expression

    @property
    def _next(self) -> _LarkToken:
        return self._tokens[self._at]

    def _take(self, text: str) -> bool:
        is_next = self._next == _LarkToken("sign", text)
        self._at += is_next
        return is_next

    def _alternatives(self) -> str:
        self._take("|")
        options = [self._sequence()]
        while self._take("|"):
            options.append(self._sequence())
        return _bounded(f"(?:{'|'.join(options)})" if len(options) > 1 else options[0])

    def _sequence(self) -> str:
        parts: list[str] = []
        while self._next.kind in ("string", "regex", "name") or self._next.text in ("(", "["):
            parts.append(self._item())
        if self._take("->"):
            self._at += 1
        return _bounded("".join(parts))

    def _item(self) -> str:
        atom = self._atom()
        for sign in "?*+":
            if self._take(sign):
                return f"(?:{atom}){sign}"
        if self._take("~"):
            least = most = self._number()
            if self._take(".."):
                most = self._number()
            return f"(?:{atom}){{{least},{most}}}"
        return atom

    def _number(self) -> int:
        token, self._at = self._next, self._at + 1
        if token.kind != "number" or len(token.text) > 4 or int(token.text) > 1000:
            raise LarkError("'~' needs a number up to 1000")
        return int(token.text)

    def _atom(self) -> str:
        token, self._at = self._next, self._at + 1
        match token.kind:
            case "string" if self._take(".."):
                end, self._at = self._next, self._at + 1
                return _range(token.text, end.text)
            case "string":
                text = _escaped(_string(token.text.removesuffix("i")))
                return f"(?i:{text})" if token.text.endswith("i") else text
            case "regex":
                body, _, flags = token.text[1:].rpartition("/")
                flags = "".join(sorted(set(flags) - {"l", "u"}))
                body = body.replace("\\/", "/")
                return f"(?{flags}:{body})"
            case "name":
                return self._refer(token.text.lstrip("!?"))
            case _:
                return self._group(token.text)

    def _group(self, opening: str) -> str:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise LarkError(f"brackets are nested more than {_MAX_DEPTH} levels deep")
        inner = self._alternatives()
        closing = ")" if opening == "(" else "]"
        if not self._take(closing):
            raise LarkError(f"'{closing}' is missing before '{self._next.text[:40]}'")
        self._depth -= 1
        return f"(?:{inner})" if opening == "(" else f"(?:{inner})?"


def _tokens(text: str) -> list[_LarkToken]:
    tokens: list[_LarkToken] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise LarkError(f"'{text[at : at + 20]}' is not supported")
        if match.lastgroup != "space":
            tokens.append(_LarkToken(match.lastgroup or "", match[0]))
        at = match.end()
    return tokens


def _statements(tokens: Sequence[_LarkToken]) -> list[list[_LarkToken]]:
    """Divides tokens at lines. A line that begins with `|` continues the one before."""
    statements: list[list[_LarkToken]] = []
    begins = True
    for token in tokens:
        if token.kind == "line":
            begins = True
            continue
        if begins and not (statements and token == _LarkToken("sign", "|")):
            statements.append([])
        begins = False
        statements[-1].append(token)
    return statements


def _string(quoted: str) -> str:
    try:
        return json.loads(quoted, strict=False)
    except ValueError:
        raise LarkError(f"the text {quoted[:40]} has an unknown escape") from None


def _escaped(text: str) -> str:
    return "".join(
        character if character.isascii() and character.isalnum() else f"\\x{{{ord(character):x}}}"
        for character in text
    )


def _range(first: str, last: str) -> str:
    if not last.startswith('"') or len(_string(first)) != 1 or len(_string(last)) != 1:
        raise LarkError("a range must be between two characters")
    ends = [rf"\x{{{ord(_string(end)):x}}}" for end in (first, last)]
    return f"[{'-'.join(ends)}]"


def _bounded(expression: str) -> str:
    if len(expression) > MAX_CHARS:
        raise LarkError(f"its regular expression has more than {MAX_CHARS} characters")
    return expression
