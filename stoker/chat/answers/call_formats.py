"""The ways in which models write tool calls and reasoning, found from their chat templates.

A format says how calls are read (a response template of `transformers.utils.chat_parsing`, or what
the tokenizer brings itself) and how they are enforced (tags for llguidance).
"""

import ast
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

Template = Mapping[str, Any]

Rule = Callable[[Mapping[str, Any]], str]
"""Of a JSON schema, the Lark expression."""
Body = Callable[[str, Mapping[str, Any], Rule], str]
"""Of a function's name and schema, a Lark expression in which `«…»` is text that may hold special
tokens."""

_REASONING = {"open": "<think>", "close": "</think>", "content": "text"}
_ANY_ANCHOR = r"\A(?!)"
"""Never found: the parser then reads the whole prompt's end, which is what it is given."""


class MalformedCallError(Exception):
    """What the model wrote as a call is none."""


class UnwritableCallError(Exception):
    """A name that this family of models cannot write."""

    def __init__(self, name: str) -> None:
        super().__init__(f"this model cannot write the name '{name}'")


@dataclass(frozen=True, kw_only=True)
class Call:
    """A whole call of a tool."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Format:
    """How one family of models writes calls."""

    name: str
    found_by: str
    """A regular expression that finds it in a chat template."""
    open: str
    """A regular expression of what begins calls."""
    close: str | None
    """What ends them; None: the end of the answer."""
    read: Callable[[str], list[Call]]
    """The calls that stand between. Raises `MalformedCallError`."""
    trigger: str
    """What the answer begins calls with, for enforcing."""
    body: "Body"
    """What follows the trigger, to the end of the call."""
    arguments_key: str | None = None
    """Of the JSON object that a call is, where arguments may be streamed; None: they may not."""
    several: bool = True
    """Whether an answer may hold more than one such tag."""
    whole: "Body | None" = None
    """A call with its trigger, where that is no mark but what any JSON may begin with; None: it is
    distinguished from other forms of an answer by the trigger."""

    @property
    def template(self) -> Template:
        """For `ResponseParser`: text, reasoning, and the calls as they were written."""
        calls: dict[str, Any] = {"open_pattern": self.open, "content": "text", "repeats": True}
        calls["content_args"] = {"strip": False}
        if self.close is not None:
            calls["close_pattern"] = self.close
        return response_template(calls)


def response_template(calls: Mapping[str, Any] | None) -> Template:
    """transformers' template of an answer: text, reasoning, and calls where a format has some."""
    fields: dict[str, Any] = {
        "content": {"content": "text", "content_args": {"strip": False}, "repeats": True},
        "reasoning": {**_REASONING, "repeats": True},
    }
    if calls:
        fields["tool_calls"] = calls
    return {"start_anchor_pattern": _ANY_ANCHOR, "fields": fields}


def arguments_text(arguments: Mapping[str, Any]) -> str:
    """A call's arguments as JSON. Raises `MalformedCallError` where JSON has no such value."""
    try:
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        # Half of a surrogate pair is no character: written as an escape it is JSON at least.
        return text if _encodable(text) else json.dumps(arguments, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise MalformedCallError from error


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _json_calls(text: str) -> list[Call]:
    """A call as a JSON object, or a list of such."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MalformedCallError from error
    values = cast("list[Any]", value) if isinstance(value, list) else [value]
    return [_json_call(one) for one in values]


def _json_call(value: Any) -> Call:
    if not isinstance(value, dict):
        raise MalformedCallError
    body = cast("dict[str, Any]", value)
    name = body.get("name")
    arguments: Any = body.get("arguments", body.get("parameters", {}))
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError) as error:
            raise MalformedCallError from error
    if not isinstance(name, str) or not isinstance(arguments, dict | None):
        raise MalformedCallError
    if not _encodable(name):
        raise MalformedCallError
    return Call(name=name, arguments=cast("dict[str, Any]", arguments or {}))


def _python_calls(text: str) -> list[Call]:
    """Calls as Python writes them: `[get_weather(city="Paris"), get_time()]`. Nothing is run."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        nodes = tree.elts if isinstance(tree, ast.List) else [tree]
        return [_python_call(node) for node in nodes]
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise MalformedCallError from error


def _python_call(node: ast.expr) -> Call:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.args:
        raise MalformedCallError
    arguments: dict[str, Any] = {}
    for one in node.keywords:
        if one.arg is None:
            raise MalformedCallError
        arguments[one.arg] = _python_value(one.value)
    return Call(name=node.func.id, arguments=arguments)


def _python_value(node: ast.expr) -> Any:
    """A value that JSON has too; its names for constants are taken as well."""
    match node:
        case ast.Constant(value=str() as text):
            # JSON's escapes write characters beyond the first plane as pairs.
            return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        case ast.Constant(value=bool() | int() | float() | None as value):
            return value
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return [_python_value(one) for one in elements]
        case ast.Dict(keys=keys, values=values):
            return {
                _python_key(key): _python_value(value)
                for key, value in zip(keys, values, strict=True)
            }
        case _:
            raise MalformedCallError


def _python_key(node: ast.expr | None) -> str:
    key = _python_value(node) if node is not None else None
    if not isinstance(key, str):
        raise MalformedCallError
    return key


_CONSTANTS: Mapping[str, Any] = {"true": True, "false": False, "null": None}


def _json_body(before: str, key: str, after: str) -> Body:
    def body(name: str, schema: Mapping[str, Any], rule: Rule) -> str:
        head = f'{before}{{"name": {json.dumps(name)}, "{key}": '
        return f"«{head}» {rule(schema)} «}}{after}»"

    return body


def _llama_body(name: str, schema: Mapping[str, Any], rule: Rule) -> str:
    return f'«{json.dumps(name)}, "parameters": » {rule(schema)} «}}»'


def _llama_whole(name: str, schema: Mapping[str, Any], rule: Rule) -> str:
    """The same as one JSON value: only of such is it known whether it is a call."""
    parameters = moved(schema, "#/properties/parameters")
    return rule(
        {
            "type": "object",
            "properties": {"name": {"const": name}, "parameters": parameters},
            "required": ["name", "parameters"],
            "additionalProperties": False,
        }
    )


_NO_SCHEMAS = frozenset({"const", "enum", "default", "examples"})


def moved(schema: Any, place: str) -> Any:
    """A schema whose references to itself hold where it stands in another one."""
    if isinstance(schema, list):
        return [moved(one, place) for one in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    found: dict[str, Any] = {}
    for key, value in cast("dict[str, Any]", schema).items():
        if key == "$ref" and isinstance(value, str) and value.startswith("#"):
            found[key] = place + value[1:]
        else:
            found[key] = value if key in _NO_SCHEMAS else moved(value, place)
    return found


def _python_body(name: str, schema: Mapping[str, Any], rule: Rule) -> str:
    """Its required arguments, by name and in the schema's order."""
    properties: Mapping[str, Any] = schema.get("properties") or {}
    required = [one for one in properties if one in (schema.get("required") or [])]
    if unwritable := [one for one in (name, *required) if not one.isidentifier()]:
        raise UnwritableCallError(unwritable[0])
    shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    parts = [f"«{one}=» {rule(_with(properties[one], shared))}" for one in required]
    return f"«{name}(» {' «, » '.join(parts)} «)]»"


def _with(schema: Any, shared: Mapping[str, Any]) -> Any:
    """A property's schema with the definitions that it may refer to."""
    return {**cast("dict[str, Any]", schema), **shared} if isinstance(schema, dict) else schema


_NAMED = r'\{\s*"name"\s*:'

FORMATS: Sequence[Format] = (
    Format(
        name="mistral",
        found_by=r"\[TOOL_CALLS\]",
        open=r"\[TOOL_CALLS\]",
        close=None,
        read=_json_calls,
        trigger="[TOOL_CALLS]",
        body=_json_body(" [", "arguments", "]"),
        several=False,
    ),
    Format(
        name="hermes",
        found_by=r"<tool_call>",
        open=r"<tool_call>\s*",
        close=r"\s*</tool_call>\s*",
        read=_json_calls,
        trigger="<tool_call>",
        body=_json_body("\n", "arguments", "\n</tool_call>"),
        arguments_key="arguments",
    ),
    Format(
        name="llama3",
        found_by=r'"parameters"\s*:|<\|python_tag\|>',
        open=rf"(?:<\|python_tag\|>\s*|\A\s*)(?={_NAMED})",
        close=None,
        read=_json_calls,
        trigger='{"name": ',
        body=_llama_body,
        whole=_llama_whole,
        arguments_key="parameters",
        several=False,
    ),
    Format(
        name="pythonic",
        found_by=r"func_name1\(|\[func|pythonic",
        open=r"\A\s*(?=\[\s*[A-Za-z_][\w.]*\()",
        close=None,
        read=_python_calls,
        trigger="[",
        body=_python_body,
        several=False,
    ),
)


def format_of(chat_template: str) -> Format | None:
    """The way in which a model with this chat template writes calls."""
    return next((one for one in FORMATS if re.search(one.found_by, chat_template)), None)
