# ruff: noqa: E501 - each way to ask stays on one line
"""Tools that the training of `tiny-chat` offers, with the ways to ask for them and their
results.
"""

import json
from collections.abc import Sequence
from random import Random
from typing import Any, NamedTuple

from tools.demo_models.grammar import capitalise, entries, every, expand, words
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


def _forms(*templates: str) -> tuple[str, ...]:
    return tuple(form for template in templates for form in every(template))


ASKED: dict[str, tuple[str, ...]] = {
    "weather": _forms(
        "(What is|What's|How is|How's) the weather in {city}( today| now| right now|)(?|)",
        "What is the weather (like|going to be) in {city}( today|)?",
        "(Tell me|Show me|Give me|Check|Look up|Find) the (current |)weather in {city}( please|, please|).",
        "(Please tell me|Please check|Please look up|I want to know|I need) the (current |)weather in {city}.",
        "(Can|Could) you (check|tell me|look up) the weather in {city}( for me|)?",
        "Is it (raining|sunny|cold|warm|hot|windy|cloudy) in {city}( today| now|)?",
        "Do I need (an umbrella|a coat|a hat) in {city}( today|)?",
        "(What is|What's) the temperature in {city}( today| now|)?",
        "How (warm|cold|hot) is it in {city}( today| now|)?",
        "(Weather|The weather) in {city}(?|)",
        "(I am|I'm) (in|going to|travelling to|flying to) {city}. (What is the weather|How is the weather) there?",
        "(Give me|I want) the weather (report|forecast) for {city}.",
        "{city} weather(?|)",
    ),
    "time": _forms(
        "What time is it( now|)?",
        "(What is|What's) the time( now|)?",
        "(Tell me|Please tell me|Check|Give me) the( current|) time.",
        "(Can|Could) you tell me the time?",
        "How late is it?",
    ),
    "population": _forms(
        "How many people (live in|are there in) {city}?",
        "(What is|What's) the population of {city}?",
        "(Tell me|Look up|Check|Please look up|Give me) the population of {city}.",
        "How (big|large) is (the population of |){city}?",
        "How many (inhabitants|people) does {city} have?",
        "(Can|Could) you (tell me|look up) how many people live in {city}?",
        "The population of {city}?",
    ),
}
"""Maps a kind of tool to the ways to ask for it."""
UNSEEN: dict[str, tuple[str, ...]] = {
    "weather": (
        "Please find the weather in {city}.",
        "Could you tell me what the weather is like in {city}?",
        "How does the weather look in {city} today?",
        "Do I need a warm coat in {city} today?",
        "I am going to {city} today. How cold is it there?",
        "Tell me how the weather is in {city}.",
    ),
    "time": ("Could you please tell me what time it is?", "Please check the time."),
    "population": (
        "Please tell me how many people live in {city}.",
        "Find the population of {city}.",
    ),
}
"""Maps a kind of tool to ways to ask that are not trained on."""
TWICE = _forms(
    "What (is|will be) the weather in {city} and (in |){other}( today|)?",
    "(What is|What's|How is) the weather in {city} and( in|) {other}?",
    "(Tell me|Compare|Check|Please tell me|Look up) the weather in {city} and( in|) {other}.",
    "Is it (warmer|colder|sunny|raining) in {city} or( in|) {other}?",
    "How (warm|cold) is it in {city} and( in|) {other}?",
    "(The weather|Weather) in {city} and( in|) {other}?",
)
TWICE_UNSEEN = (
    "Please compare the weather in {city} and in {other}.",
    "Could you check the weather in {city} and {other} for me?",
    "How is the weather today in {city} and in {other}?",
)
THRICE = _forms("(What is|Tell me|How is) the weather in {city}, {other} and {third}(?|)")
AGAIN = _forms(
    "(And in|And|What about|And what about|How about) {city}?", "And the weather in {city}?"
)

_NAMES = {
    "weather": _forms(
        "(get|lookup|look_up|fetch|find|check|show|read|query)_(current_|)(weather|forecast)",
        "(current_|)weather(_report|_in_city|_lookup|)",
        "(getWeather|weatherReport|getCurrentWeather)",
    ),
    "time": _forms(
        "(get|tell|read|check|fetch)_(current_|)time", "(time|clock|current_time|getTime|time_now)"
    ),
    "population": _forms("(get|lookup|find|count)_(population|inhabitants)", "population(_of|)"),
}
_DESCRIPTIONS = {
    "weather": _forms(
        "(Get|Gets|Look up|Looks up|Find|Return|Returns|Tells) the (current |)weather (in|of|for) a (city|place|location|town|given city)(.|)",
        "The (current |)weather (in|of) a (city|place)(.|)",
        "(Current weather|Weather report|Weather forecast) (for|of) a (city|location)(.|)",
        "Weather(.|)",
    ),
    "time": _forms(
        "(Get|Gets|Tell|Tells|Return|Returns) the (current |)time(.|)", "The (current |)time(.|)"
    ),
    "population": _forms(
        "(Get|Gets|Look up|Returns) the (population|number of inhabitants) of a (city|place)(.|)",
        "How many people live in a city(.|)",
    ),
}
_PARAMETERS = words("city city city city location location place place town city_name where")
_ABOUT_PARAMETER = _forms(
    "(The |)(city|city name|location|place|name of the city)(.|)",
    "(The city|A place) to look up(.|)",
)
_OTHERS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("send_email", "Send an email.", ("to", "text")),
    ("search", "Search the web.", ("query",)),
    ("calculate", "Calculate an expression.", ("expression",)),
    ("play_music", "Play a song.", ("song",)),
    ("translate", "Translate a text.", ("text", "language")),
    ("get_news", "Get the news of today.", ()),
    ("open_door", "Open the door.", ()),
    ("set_alarm", "Set an alarm.", ("time",)),
    ("book_flight", "Book a flight to a city.", ("city",)),
    ("find_hotel", "Find a hotel in a place.", ("place",)),
)
"""Tools that no question needs: name, description, parameters."""

CONDITIONS = entries("""
sunny, cloudy, rainy, windy, foggy, snowy, stormy, clear, overcast, partly cloudy, misty, dry, humid, wet,
mostly sunny, mild, bright, hazy, icy, warm, freezing, hot, calm, grey, very windy, heavy rain, partly sunny,
mostly cloudy, drizzly, frosty, cold, cool, breezy, dark, light rain, light snow, heavy snow, scorching,
showery, thundery, dusty, smoky, muggy, chilly, fair, fine, gloomy, bitterly cold, clear sky, raining,
snowing, hailing, pleasant, stuffy, slightly cloudy, mostly clear, broken clouds, scattered clouds,
few clouds, overcast clouds, moderate rain, thunderstorm, fog, mist, drizzle, snow, rain, sleet, showers
""")
_FAILURES = entries("not found, no such city, unknown place, timeout, no data, service unavailable")


def offered(rng: Random, kinds: Sequence[str], others: int) -> list[Tool]:
    """Returns one tool of each kind and some unneeded ones, in random order."""
    tools = [_tool(rng, kind) for kind in kinds]
    for name, description, parameters in rng.sample(_OTHERS, others):
        tools.append(_described(rng, "other", name, description, parameters))
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


_PLAIN_RESULTS = _forms(
    "{n} degrees and {sky}(.|)",
    "{sky}, {n} degrees",
    "It is {n} degrees and {sky}(.| in {city}.)",
    "{n}(°C| °C| C|°), {sky}",
    "{n} degrees, {sky}",
    "{sky} and {n} degrees",
    "{n} C and {sky}",
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
