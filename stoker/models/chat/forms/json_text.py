"""How JSON values are written: regular expressions (Rust's syntax) for terminals of Lark grammars.

None of them holds a slash, which ends an expression in Lark.

llguidance's own string rule admits no `\\/` and, as it is set up by default, no `\\u00e9`. Models
that were trained on other writers' JSON write both. Here every escape of RFC 8259 is admitted,
except half of a surrogate pair: such a string is no Unicode text, and readers refuse or change it.
"""

import json
from typing import Any, cast

_UNICODE = (
    r"u(?:[0-9a-ce-fA-CE-F][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}"
    r"|[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
)
CHARACTER = r'(?:[^"\\\x00-\x1F]|\\(?:["\\\x2Fbfnrt]|' + _UNICODE + "))"
"""Regular expression of a character in a string, in any spelling. A surrogate pair counts as one
character.
"""
NUMBER = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
INTEGER = r"-?(?:0|[1-9][0-9]*)"
_SHORT = {'"': '"', "\\": "\\", "/": "/", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}
_PLAIN = frozenset(" -_0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
"""Characters with a single spelling in fixed texts, because JSON writers do not escape them."""


def strings(least: int = 0, most: int | None = None) -> str:
    """Returns the expression of strings with a bounded number of characters."""
    if (least, most) == (0, None):
        return f'"{CHARACTER}*"'
    return f'"{CHARACTER}{{{least},{"" if most is None else most}}}"'


def string(text: str) -> str:
    """Returns the expression of a string in all of its spellings."""
    return f'"{"".join(_spellings(character) for character in text)}"'


def is_plain(text: str) -> bool:
    """Returns True if a string has a single spelling."""
    return _PLAIN.issuperset(text)


def _spellings(character: str) -> str:
    if character in _PLAIN:
        return character
    ways: list[str] = []
    if character not in '"\\' and character >= " ":
        ways.append(rf"\x{{{ord(character):X}}}")
    if character in _SHORT:
        ways.append(rf"\\\x{{{ord(_SHORT[character]):X}}}")
    units = character.encode("utf-16-be").hex()
    ways.append("".join(rf"\\u{_hex(units[at : at + 4])}" for at in range(0, len(units), 4)))
    return f"(?:{'|'.join(ways)})"


def _hex(digits: str) -> str:
    return "".join(
        digit if digit.isdigit() else f"[{digit}{digit.upper()}]" for digit in digits.lower()
    )


def literal(value: Any) -> str:
    """Returns the expression of a value, written on one line."""
    if isinstance(value, str):
        return string(value)
    if isinstance(value, list):
        items = cast("list[Any]", value)
        return rf"\[{', '.join(literal(item) for item in items)}\]"
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value).items()
        written = ", ".join(f"{string(name)}: {literal(member)}" for name, member in members)
        return rf"\{{{written}\}}"
    return "".join(rf"\x{{{ord(character):X}}}" for character in json.dumps(value))
