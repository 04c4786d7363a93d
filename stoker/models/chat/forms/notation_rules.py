"""Rules of arguments written as Python's keyword arguments or as Gemma's objects."""

from collections.abc import Mapping
from typing import Any

from stoker.models.chat.answers.call_formats.calls import UnwritableCallError
from stoker.models.chat.answers.call_formats.gemma_arguments import GemmaArguments
from stoker.models.chat.answers.call_formats.values import types
from stoker.models.chat.forms.argument_schemas import (
    TEXT_ONLY,
    choices_of,
    fields,
    refuse_unquoted_limits,
    with_definitions,
)
from stoker.models.chat.forms.lark import GrammarRules, either, literal, quoted, sequence, spellings


def keywords(lark: GrammarRules, schema: Mapping[str, Any], *, strict: bool) -> str:
    """Returns the expression of Python's keyword arguments, in the schema's order.

    Raises `UnwritableCallError`.
    """
    properties, required, open_ended = fields(schema, strict=strict)
    if unwritable := [name for name in required if not name.isidentifier()]:
        raise UnwritableCallError(f"this model cannot write the name '{unwritable[0]}'")
    members: list[tuple[str, bool]] = []
    for name, property_schema in properties.items():
        if not name.isidentifier():
            continue
        kinds = types(property_schema, schema)
        value = lark.rule(with_definitions(property_schema, schema))
        if kinds & {"boolean", "null"}:
            value = f"({value} | {' | '.join(spellings(kinds))})"
        if not strict and choices_of(property_schema) is None:
            value = f"({value} | QUOTED)" if kinds == TEXT_ONLY else value
            value = "py" if kinds & {"array", "object"} else value
        members.append((f"{quoted(name + '=')} {value}", name in required))
    return sequence(
        lark, members, "/[A-Za-z_][A-Za-z0-9_]*/ «=» py" if open_ended else None, "«,» SPACE?"
    )


def gemma(
    lark: GrammarRules, way: GemmaArguments, schema: Mapping[str, Any], *, strict: bool
) -> str:
    """Returns the expression of an object with unquoted names, sorted by name.

    Raises `UnwritableCallError`.
    """
    properties, required, open_ended = fields(schema, strict=strict)
    text = f"{quoted(way.quote)} free {quoted(way.quote)}"
    if not lark.special(way.quote):
        text = f"{quoted(way.quote)} free {lark.lazy(f'TEXT? {literal(way.quote)}')}"
    string = lark.named(text, "gtext")
    anything = "gany"
    if anything not in lark.known:
        lark.known[anything] = anything
        lark.lines += [
            f"gany: {string} | NUMBER | WORD | glist | gdict",
            "glist: «[» (gany («,» SPACE? gany)*)? «]»",
            "gdict: «{» (gkey «:» gany («,» SPACE? gkey «:» gany)*)? «}»",
            f'gkey: /[^<>"{{}}\\[\\],:\\s]{{1,64}}/ | {string}',
        ]
    members: list[tuple[str, bool]] = []
    # Gemma's chat template sorts the names, so the model does it too.
    for name, property_schema in sorted(properties.items()):
        kinds = types(property_schema, schema)
        choices = choices_of(property_schema)
        if choices is not None:
            value = f"{quoted(way.quote)} ({either(choices)}) {quoted(way.quote)}"
        elif kinds == TEXT_ONLY:
            if strict:
                refuse_unquoted_limits(property_schema)
            value = string
        elif kinds & {"string", "array", "object"}:
            if strict:
                raise UnwritableCallError(
                    "a schema cannot be enforced on this model's notation of lists and objects"
                )
            value = anything
        else:
            value = lark.rule(with_definitions(property_schema, schema))
            if words := spellings(kinds):
                value = f"({value} | {' | '.join(words)})"
        members.append((f"{quoted(name + ':')} {value}", name in required))
    inner = sequence(lark, members, "gkey «:» gany" if open_ended else None, "«,» SPACE?")
    return f"«{{» {inner} «}}»"
