"""Draws the dialogues that `tiny-chat` is trained and measured with."""

import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, NamedTuple

from tools.demo_models import chat_names, chat_text, chat_tools
from tools.demo_models.chat_text import TOPICS
from tools.demo_models.chat_tools import Tool
from tools.demo_models.grammar import capitalise, expand

Message = dict[str, Any]


class Dialogue(NamedTuple):
    """Messages with an assistant's turn at the end, and the tools offered with them."""

    messages: list[Message]
    tools: list[dict[str, Any]]


class Fact(NamedTuple):
    """A question, its answer as a sentence and as a word, and its topic, if any."""

    question: str
    answer: str
    word: str
    topic: str


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


def calls(*made: dict[str, Any]) -> Message:
    return {"role": "assistant", "content": "", "tool_calls": list(made)}


def result(text: str) -> Message:
    return {"role": "tool", "content": text}


def system(text: str) -> Message:
    return {"role": "system", "content": text}


class Teacher:
    """Draws dialogues. Held-out dialogues use wordings and names that the training never uses."""

    def __init__(self, *, held_out: bool, pieces: Sequence[str] = ()) -> None:
        self._held_out = held_out
        self._namer = chat_names.Namer(pieces)

    def city(self, rng: Random) -> str:
        return rng.choice(chat_names.UNSEEN_CITIES) if self._held_out else self._namer.city(rng)

    def person(self, rng: Random) -> str:
        return rng.choice(chat_names.UNSEEN_PEOPLE) if self._held_out else self._namer.person(rng)

    def cities(self, rng: Random, count: int) -> list[str]:
        """Returns `count` different cities."""
        names: list[str] = []
        while len(names) < count:
            city = self.city(rng)
            if city not in names:
                names.append(city)
        return names

    def dialogue(self, rng: Random) -> Dialogue:
        """Returns a dialogue of one to four exchanges, with a system message, with tools or with
        neither.
        """
        draw = rng.random()
        if draw < 0.2:
            return self.short(rng)
        if draw < 0.33:
            return self.styled(rng, rng.choice(tuple(chat_text.STYLES)), rng.choice((1, 1, 2, 3)))
        messages = self.prompt(rng)
        if draw < 0.63:
            return Dialogue(messages + self.talk(rng, rng.choice((1, 2, 2, 3))), [])
        tools = self.tools(rng)
        for _ in range(rng.choice((1, 2, 3, 4))):
            messages += self.with_tools(rng, tools)
        # A client may omit the tools after it has received their results.
        unlisted = messages[-2]["role"] == "tool" and rng.random() < 0.05
        return Dialogue(messages, [] if unlisted else [tool.schema for tool in tools])

    def short(self, rng: Random) -> Dialogue:
        """Returns one exchange without tools. Many of these only copy or calculate."""
        draw = rng.random()
        if draw < 0.25:
            return Dialogue(self.repeat(rng), [])
        if draw < 0.4:
            return Dialogue(self.as_json(rng), [])
        if draw < 0.6:
            return Dialogue(self._pair(self.fact(rng, rng.choice(("plus", "plus", "minus")))), [])
        return Dialogue(self.prompt(rng) + self.talk(rng, 1), [])

    def prompt(self, rng: Random) -> list[Message]:
        """Returns no system message, or one that requests no style."""
        return [system(rng.choice(chat_text.PLAIN_SYSTEMS))] if rng.random() < 0.4 else []

    def tools(self, rng: Random) -> list[Tool]:
        """Returns a weather tool in most cases, and sometimes others."""
        kinds = [kind for kind, share in _SHARES.items() if rng.random() < share]
        return chat_tools.offered(rng, kinds, rng.choice((0, 0, 0, 1, 2)) if kinds else 1)

    # -- without tools ---------------------------------------------------------------------------

    def talk(self, rng: Random, exchanges: int) -> list[Message]:
        """Returns exchanges without tools."""
        messages: list[Message] = []
        name = topic = ""
        for _ in range(exchanges):
            draw = rng.random()
            if topic and TOPICS[topic].more and draw < 0.3:
                messages += self._pair(self.fact(rng, topic, more=True))
                continue
            topic = ""
            if draw < 0.42:
                fact = self.fact(rng)
                topic = fact.topic
                messages += self._pair(fact)
            elif draw < 0.48:
                name = self.person(rng)
                introduction = expand(rng.choice(chat_text.NAME_TOLD), rng, {"name": (name,)})
                messages += [user(introduction), assistant(f"Hello, {name}!")]
            elif draw < (0.62 if name else 0.495):
                answer = f"Your name is {name}." if name else chat_text.NAME_UNTOLD
                messages += [user(rng.choice(chat_text.NAME_ASKED)), assistant(answer)]
            else:
                messages += rng.choices(_EXCHANGES, _WEIGHTS)[0](self, rng)
        return messages

    def fact(self, rng: Random, topic: str = "", *, more: bool = False) -> Fact:
        """Returns a question about a fact. Held-out questions use a wording that was never trained
        with this fact.
        """
        name = topic or rng.choices(tuple(_TOPIC_SHARES), tuple(_TOPIC_SHARES.values()))[0]
        about = TOPICS[name]
        while True:
            row = rng.choice(about.rows)
            slots = {column: (value,) for column, value in row.items()}
            ways = (*about.ways, *about.unseen) if self._held_out else about.ways
            way = about.more if more else rng.choice(ways)
            question = expand(way, rng, slots)
            unseen = way in about.unseen or chat_text.held_back(question)
            if more or unseen == self._held_out:
                break
        if not self._held_out:
            question = _varied(rng, question)
        answer = capitalise(about.answer.format(**row))
        return Fact(capitalise(question), answer, capitalise(row[about.word]), name)

    def small_talk(self, rng: Random) -> list[Message]:
        ways, unseen, answer = rng.choice(chat_text.SMALL_TALK)
        message = rng.choice(unseen if self._held_out else ways)
        if not self._held_out and rng.random() < 0.2:
            message = f"{message.rstrip('!.')}{rng.choice((',', '!', '.'))} {rng.choice(ways)}"
        return [user(message), assistant(answer)]

    def unknown(self, rng: Random) -> list[Message]:
        slots = {
            "noun": chat_text.NOUNS,
            "adjective": chat_text.ADJECTIVES,
            "name": self.person,
            "place": self.city,
        }
        question = expand(rng.choice(chat_text.UNKNOWN_QUESTIONS), rng, slots)
        return [user(question), assistant(chat_text.UNKNOWN)]

    def without_tool(self, rng: Random) -> list[Message]:
        """Returns a question about the weather or the time that no tool can answer."""
        if rng.random() < 0.4:
            return [user(self.asked(rng, "time")), assistant(chat_text.NO_TIME)]
        question = self.asked(rng, "weather", city=self.city(rng))
        return [user(question), assistant(chat_text.NO_WEATHER)]

    def repeat(self, rng: Random) -> list[Message]:
        text = chat_names.lines(rng, self._namer, chat_text.NOUNS + chat_text.ADJECTIVES)
        if rng.random() < 0.3:
            text = capitalise(text) + rng.choice(".!?")
        return [
            user(rng.choice(chat_text.REPEATS).replace("{text}", text)),
            assistant(text),
        ]

    def count(self, rng: Random) -> list[Message]:
        """Returns a count between two numbers up to 200, mostly close together."""
        first = 1 if rng.random() < 0.4 else rng.randint(0, 195)
        draw = rng.random()
        span = 14 if draw < 0.6 else 40 if draw < 0.95 else 200
        last = min(200, first + rng.randint(1, span))
        if first == 1 and rng.random() < 0.2:
            last = rng.choice((5, 10, 10, 10, 20) if draw < 0.9 else (50, 100, 100, 200))
        ways = chat_text.COUNTS + (chat_text.COUNTS_FROM_ONE if first == 1 else ())
        question = rng.choice(ways).format(a=first, b=last)
        return [user(question), assistant(numbers(first, last))]

    def count_on(self, rng: Random) -> list[Message]:
        """Returns a count that continues to the next number that ends in zero."""
        first = rng.randint(0, 190)
        last = first + rng.randint(1, 6)
        shown = numbers(first, last) + rng.choice((",", ",", ",", ""))
        question = rng.choice(chat_text.CONTINUES).format(numbers=shown)
        return [user(question), assistant(numbers(last + 1, (last // 10 + 1) * 10))]

    def as_json(self, rng: Random) -> list[Message]:
        about = {"name": self.person(rng), "age": rng.randint(1, 99), "city": self.city(rng)}
        ways = chat_text.JSON_UNSEEN if self._held_out else chat_text.JSON_WAYS
        slots = {key: (str(value),) for key, value in about.items()}
        question = expand(rng.choice(ways), rng, slots)
        return [user(question), assistant(json.dumps(about, ensure_ascii=False))]

    def styled(self, rng: Random, style: str, exchanges: int) -> Dialogue:
        """Returns facts that are answered in the style that the system message requests."""
        instruction = rng.choice(chat_text.STYLES[style])
        if rng.random() < 0.25:
            instruction = f"{rng.choice(chat_text.PLAIN_SYSTEMS)} {instruction}"
        messages = [system(instruction)]
        for _ in range(exchanges):
            fact = self.fact(rng)
            answer = fact.word if style == "word" else fact.answer.upper()
            messages += [user(fact.question), assistant(answer)]
        return Dialogue(messages, [])

    def _pair(self, fact: Fact) -> list[Message]:
        return [user(fact.question), assistant(fact.answer)]

    # -- with tools ------------------------------------------------------------------------------

    def asked(self, rng: Random, kind: str, **slots: str) -> str:
        """Returns a question for a kind of tool."""
        ways = (chat_tools.UNSEEN if self._held_out else chat_tools.ASKED)[kind]
        text = expand(rng.choice(ways), rng, {key: (at,) for key, at in slots.items()})
        return capitalise(text if self._held_out else _varied(rng, text))

    def with_tools(self, rng: Random, tools: Sequence[Tool]) -> list[Message]:
        """Returns an exchange with offered tools: a call and its result, or neither."""
        kinds = [tool.kind for tool in tools if tool.kind != "other"]
        draw = rng.random()
        if draw < 0.25:
            return self.talk_beside(rng, kinds)
        if "weather" in kinds and draw < 0.42:
            return self.several(rng, tools)
        if kinds:
            return self.one(rng, tools, rng.choices(kinds, [_SHARES[kind] for kind in kinds])[0])
        return self.without_tool(rng)

    def talk_beside(self, rng: Random, kinds: Sequence[str]) -> list[Message]:
        """Returns an exchange that is unrelated to the offered tools."""
        draw = rng.random()
        if draw < 0.6:
            return self._pair(self.fact(rng))
        if draw < 0.85 or "weather" in kinds:
            return self.small_talk(rng)
        question = self.asked(rng, "weather", city=self.city(rng))
        return [user(question), assistant(chat_text.NO_WEATHER)]

    def one(self, rng: Random, tools: Sequence[Tool], kind: str) -> list[Message]:
        """Returns one call, its result and the answer. A weather exchange may continue with another
        city.
        """
        tool = next(tool for tool in tools if tool.kind == kind)
        if kind == "time":
            outcome = chat_tools.time(rng)
            question = user(self.asked(rng, kind))
            return [
                question,
                calls(chat_tools.call(tool)),
                result(outcome.content),
                assistant(outcome.said),
            ]
        city = self.city(rng)
        messages = [user(self.asked(rng, kind, city=city)), *self._looked_up(rng, tool, [city])]
        if kind == "weather" and rng.random() < 0.15:
            other = self.city(rng)
            question = expand(rng.choice(chat_tools.AGAIN), rng, {"city": (other,)})
            messages += [user(question), *self._looked_up(rng, tool, [other])]
        return messages

    def several(self, rng: Random, tools: Sequence[Tool]) -> list[Message]:
        """Returns parallel calls for two or three cities, or for the weather and the time."""
        tool = next(tool for tool in tools if tool.kind == "weather")
        clock = next((tool for tool in tools if tool.kind == "time"), None)
        if clock and rng.random() < 0.3:
            return self._weather_and_time(rng, tool, clock)
        three = not self._held_out and rng.random() < 0.15
        cities = self.cities(rng, 3 if three else 2)
        ways = chat_tools.TWICE_UNSEEN if self._held_out else chat_tools.TWICE
        names: tuple[str, ...] = ("city", "other", "third")
        slots = {name: (city,) for name, city in zip(names, cities, strict=False)}
        question = expand(rng.choice(chat_tools.THRICE if three else ways), rng, slots)
        return [user(question), *self._looked_up(rng, tool, cities)]

    def _weather_and_time(self, rng: Random, tool: Tool, clock: Tool) -> list[Message]:
        city = self.city(rng)
        forecast, now = chat_tools.weather(rng, city), chat_tools.time(rng)
        return [
            user(f"What is the weather in {city} and what time is it?"),
            calls(chat_tools.call(tool, city), chat_tools.call(clock)),
            result(forecast.content),
            result(now.content),
            assistant(f"{forecast.said} {now.said}"),
        ]

    def _looked_up(self, rng: Random, tool: Tool, cities: Sequence[str]) -> list[Message]:
        """Returns the calls for the cities, their results and the answer."""
        if tool.kind == "population":
            results = [chat_tools.population(rng, city) for city in cities]
        else:
            results = [chat_tools.weather(rng, city) for city in cities]
        return [
            calls(*(chat_tools.call(tool, city) for city in cities)),
            *(result(each.content) for each in results),
            assistant(" ".join(each.said for each in results)),
        ]


_SHARES = {"weather": 0.9, "time": 0.3, "population": 0.2}
"""Maps a kind of tool to the share of dialogues that offer it."""
_TOPIC_SHARES = dict.fromkeys(TOPICS, 1) | {"capital": 3, "plus": 4, "minus": 2}
_EXCHANGES: tuple[Callable[[Teacher, Random], list[Message]], ...] = (
    Teacher.small_talk,
    Teacher.unknown,
    Teacher.without_tool,
    Teacher.repeat,
    Teacher.count,
    Teacher.count_on,
    Teacher.as_json,
)
_WEIGHTS = (18, 5, 10, 12, 22, 10, 14)


def _varied(rng: Random, question: str) -> str:
    """Varies a question: sometimes politer, with surrounding words or without its final mark."""
    draw = rng.random()
    bare, mark = question.rstrip("?."), question[-1]
    if draw < 0.05:
        return f"{bare}, please{mark if mark in '?.' else ''}"
    if draw < 0.1:
        return bare
    if draw < 0.2:
        return rng.choice(chat_text.WRAPPED).replace("{question}", question)
    return question


def numbers(first: int, last: int) -> str:
    """Returns the numbers from `first` to `last`, both included."""
    return ", ".join(str(number) for number in range(first, last + 1))


def plain_text(rng: Random) -> str:
    """Returns a text without template: a fact, or a range of the numbers up to 200."""
    if rng.random() < 0.5:
        about = TOPICS[rng.choice(chat_text.PLAIN_FACTS)]
        return capitalise(about.answer.format(**rng.choice(about.rows)))
    first = rng.choice((0, 1, 1, 1, rng.randint(2, 190)))
    return numbers(first, 200)
