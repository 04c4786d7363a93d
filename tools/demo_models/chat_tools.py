"""Tools that the training of `tiny-chat` offers, with the ways to ask for them and their
results.
"""

import json
from collections.abc import Sequence
from random import Random
from typing import Any, NamedTuple

import msgspec

from tools.demo_models.data_file import DataFile
from tools.demo_models.grammar import all_forms, capitalise, expand, words
from tools.demo_models.names import syllables


class Tool(NamedTuple):
    """A callable function. `parameter` is empty if it has none."""

    kind: str
    name: str
    parameter: str
    schema: dict[str, Any]


class Result(NamedTuple):
    """A tool's output and the sentence that the model must derive from it."""

    content: str
    said: str


class _Other(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tool that no question needs."""

    name: str
    description: str
    parameters: tuple[str, ...]


_DATA = DataFile("chat_tools")


def _forms(key: str) -> tuple[str, ...]:
    return all_forms(_DATA.entries(key))


def _forms_by_kind(key: str) -> dict[str, tuple[str, ...]]:
    return {kind: all_forms(templates) for kind, templates in _DATA.groups(key).items()}


ASKED = _forms_by_kind("asked")
"""Maps a kind of tool to the ways to ask for it."""
UNSEEN = _DATA.groups("unseen")
"""Maps a kind of tool to ways to ask that are not trained on."""
TWICE = _forms("twice")
TWICE_UNSEEN = _DATA.entries("twice_unseen")
THRICE = _forms("thrice")
AGAIN = _forms("again")
CONDITIONS = _DATA.entries("conditions")

_NAMES = _forms_by_kind("names")
_DESCRIPTIONS = _forms_by_kind("descriptions")
_PARAMETERS = _DATA.entries("parameters")
_ABOUT_PARAMETER = _forms("about_parameter")
_OTHERS = _DATA.read("others", tuple[_Other, ...])
_FAILURES = _DATA.entries("failures")
_PLAIN_RESULTS = _forms("plain_results")


def offered(rng: Random, kinds: Sequence[str], others: int) -> list[Tool]:
    """Returns one tool of each kind and some unneeded ones, in random order."""
    tools = [_tool(rng, kind) for kind in kinds]
    for other in rng.sample(_OTHERS, others):
        tools.append(_described(rng, "other", other.name, other.description, other.parameters))
    rng.shuffle(tools)
    return tools


def plain(kind: str) -> Tool:
    """Returns the tool of a kind in its most common form."""
    name = {"weather": "get_weather", "time": "get_time", "population": "get_population"}[kind]
    description = _DESCRIPTIONS[kind][0]
    return _schema(kind, name, description, () if kind == "time" else ("city",))


def _tool(rng: Random, kind: str) -> Tool:
    if rng.random() < 0.15:
        return plain(kind)
    name = rng.choice(_NAMES[kind])
    parameter = rng.choice(_PARAMETERS)
    # Unusual names, so that the model must copy them from the tool.
    if rng.random() < 0.25:
        name += "_" + syllables(rng, rng.choice((1, 2)))
    if rng.random() < 0.15:
        parameter = syllables(rng, 2)
    parameters = () if kind == "time" else (parameter,)
    return _described(rng, kind, name, rng.choice(_DESCRIPTIONS[kind]), parameters)


def _described(
    rng: Random, kind: str, name: str, description: str, parameters: Sequence[str]
) -> Tool:
    """Returns the tool with the variations of different clients: with or without optional fields,
    in any order.
    """
    tool = _schema(kind, name, description, parameters)
    function = tool.schema["function"]
    if rng.random() < 0.1:
        del function["description"]
    if not parameters and rng.random() < 0.3:
        del function["parameters"]
    elif rng.random() < 0.15:
        function["parameters"].pop("required", None)
    if parameters and rng.random() < 0.25:
        function["parameters"]["properties"][parameters[0]]["description"] = rng.choice(
            _ABOUT_PARAMETER
        )
    if "parameters" in function and rng.random() < 0.1:
        function["parameters"]["additionalProperties"] = False
    if rng.random() < 0.1:
        function["strict"] = rng.random() < 0.5
    if rng.random() < 0.15:
        fields = list(function.items())
        rng.shuffle(fields)
        tool.schema["function"] = dict(fields)
    return tool


def _schema(kind: str, name: str, description: str, parameters: Sequence[str]) -> Tool:
    properties: dict[str, Any] = {each: {"type": "string"} for each in parameters}
    shape: dict[str, Any] = {"type": "object", "properties": properties}
    if parameters:
        shape["required"] = list(parameters)
    function = {"name": name, "description": description, "parameters": shape}
    parameter = parameters[0] if parameters else ""
    return Tool(kind, name, parameter, {"type": "function", "function": function})


def call(tool: Tool, value: str = "") -> dict[str, Any]:
    """Returns a call of the tool as an entry of a message's `tool_calls`."""
    arguments = {tool.parameter: value} if tool.parameter else {}
    return {"type": "function", "function": {"name": tool.name, "arguments": arguments}}


def weather(rng: Random, city: str) -> Result:
    """Returns a possible result of a weather tool for the city."""
    if rng.random() < 0.04:
        reason = rng.choice(_FAILURES)
        content = rng.choice((json.dumps({"error": reason}), f"Error: {reason}"))
        return Result(content, f"I could not find the weather in {city}.")
    degrees: float = rng.randint(-20, 40) if rng.random() < 0.92 else rng.randint(-90, 390) / 10
    sky = rng.choice(CONDITIONS)
    sentence = f"It is {degrees} degrees and {sky} in {city}."
    if rng.random() < 0.65:
        pairs: list[tuple[str, Any]] = [
            (rng.choice(words("temperature temperature temp temperature_c degrees")), degrees),
            (rng.choice(words("conditions conditions condition sky weather description")), sky),
        ]
        if rng.random() < 0.25:
            pairs.reverse()
        if rng.random() < 0.2:
            pairs.insert(0, (rng.choice(words("city place location")), city))
        if rng.random() < 0.1:
            pairs.append(("unit", rng.choice(("celsius", "C"))))
        return Result(dumped(rng, dict(pairs)), sentence)
    form = rng.choice(_PLAIN_RESULTS)
    return Result(
        expand(form, rng, {"n": (str(degrees),), "sky": (sky,), "city": (city,)}), sentence
    )


def time(rng: Random) -> Result:
    """Returns a possible result of a clock."""
    now = f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}"
    contents = (dumped(rng, {"time": now}), now, f"It is {now}.", dumped(rng, {"now": now}))
    return Result(rng.choice(contents), f"It is {now}.")


def population(rng: Random, city: str) -> Result:
    """Returns a possible result of a population tool for the city."""
    count = rng.randint(1, 10 ** rng.randint(3, 7))
    contents = (
        dumped(rng, {"population": count}),
        str(count),
        dumped(rng, {"city": city, "population": count}),
        f"{count} people",
    )
    return Result(rng.choice(contents), f"{capitalise(city)} has {count} inhabitants.")


def dumped(rng: Random, value: Any) -> str:
    """Encodes JSON, occasionally without spaces, as some clients do."""
    separators = (",", ":") if rng.random() < 0.2 else None
    return json.dumps(value, ensure_ascii=False, separators=separators)
