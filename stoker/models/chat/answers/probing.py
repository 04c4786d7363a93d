"""Chooses how a model's answers are read: by what its chat template writes for known messages.

A chat template writes the assistant's messages of a conversation as the model was trained to write
them. So known calls are rendered, and the format is chosen that reads them back exactly.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

from stoker.models.chat.answers.answer_events import CallArguments, CallBegun, Event, Text
from stoker.models.chat.answers.call_formats.format import Format
from stoker.models.chat.answers.call_formats.framing import Framing, framing_of
from stoker.models.chat.answers.call_formats.table import FORMATS
from stoker.models.chat.answers.declared_reading import Declared, DeclaredReader
from stoker.models.chat.answers.reading import Reader, Tongue

_LONG_ID, _SHORT_ID = "call_0123456789abcdef01234567", "aB3dE6gH9"
_TEXT, _REASON = "Let me look that up.", "The user wants the weather."
_ROLE = re.compile(r"\A\s*(<\|[A-Z_]+\|>\s*)+")
"""Marks of the message's role."""
_ENDS = re.compile(r"(\s*<\|?[\w|]+\|?>)+\s*\Z")
"""Marks of the message's end."""
_PLAIN = "Nothing but text 4711."


class Render(Protocol):
    """Renders a conversation; None: the chat template refuses it."""

    def __call__(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any], *, begins_answer: bool
    ) -> str | None: ...


class Reading(Protocol):
    """Reads one answer."""

    def add(self, text: str) -> list[Event]: ...
    def finish(self) -> list[Event]: ...


def _property(kind: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "description": f"A value of the type {kind}.", **more}


def _function(name: str, *required: str) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": "Looks something up.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": _property("string"),
                    "note": _property("string"),
                    "count": _property("integer"),
                    "exact": _property("boolean"),
                    "options": _property("object", properties={}, additionalProperties=True),
                    "tags": _property("array", items={"type": "string"}),
                },
                "required": list(required),
                "additionalProperties": False,
            },
        },
    }


TOOLS: Sequence[Any] = [_function("get_weather", "city"), _function("get_time")]
Calls = Sequence[tuple[str, Mapping[str, Any]]]
_ONE: Calls = [("get_weather", {"city": "Paris"})]
_NESTED: Mapping[str, Any] = {
    "city": "Paris",
    "count": 3,
    "exact": False,
    "options": {"deep": {"list": [1, 2.5, True, None, "x"]}},
    "tags": ["a", "5"],
}


@dataclass(frozen=True)
class Case:
    """A known message of the assistant."""

    name: str
    calls: Calls
    text: str = ""
    reasoning: str = ""


CASES: Sequence[Case] = (
    Case("one call", _ONE),
    Case("two calls", [*_ONE, ("get_time", {"city": "London", "count": 2})]),
    Case("nested arguments", [("get_weather", _NESTED)]),
    Case("no arguments", [("get_time", {})]),
    Case("Unicode and escapes", [("get_weather", {"city": 'São "P" \\ \n\t 東京 😀 <b> {x}'})]),
    Case("numbers as texts", [("get_weather", {"city": "5", "note": "true"})]),
    Case("text before", _ONE, text=_TEXT),
    Case("reasoning before", _ONE, reasoning=_REASON),
)


@dataclass(frozen=True)
class Rendered:
    """How a chat template writes a case."""

    case: Case
    prompt: str
    """The conversation before the answer."""
    begun: str
    """The conversation with what the template begins an answer with."""
    answer: str


@dataclass(frozen=True, kw_only=True)
class Habits:
    """How a chat template wants messages with calls."""

    text_arguments: bool = False
    """Arguments have to be JSON, and no object."""
    short_ids: bool = False
    """Identifiers have nine letters and digits."""
    single_calls: bool = False
    """A message may hold one call only."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """How a model's answers are read."""

    framing: Framing
    form: Format | None = None
    is_declared: bool = False
    """Whether they are read by the declared response template."""
    habits: Habits = field(default_factory=Habits)
    results: Mapping[str, str] = field(default_factory=dict[str, str])
    """A case → `read`, `not read`, or `not written` by the chat template."""
    left: int = 0
    """Characters behind the calls that were told as text."""
    is_proven: bool = False
    """Whether known calls were read back; else the choice follows from marks in the template."""
    rendered: Sequence[Rendered] = ()

    @property
    def tongue(self) -> Tongue:
        return Tongue(framing=self.framing, form=self.form, short_ids=self.habits.short_ids)


class Probe:
    """What one chat template writes for the known messages."""

    def __init__(self, render: Render) -> None:
        self._render = render
        self._user = {"role": "user", "content": "What is the weather like?"}
        self.habits = Habits()
        self.cases = self._cases()

    def _cases(self) -> Sequence[Rendered]:
        for habits in (Habits(), Habits(text_arguments=True), Habits(short_ids=True)):
            self.habits = habits
            first = self._case(CASES[0])
            if first is not None and _shows(first):
                break
        else:
            self.habits = Habits()
            return []
        found = [first, *(self._case(case) for case in CASES[1:])]
        shown = [one for one in found if one is not None and _shows(one)]
        if not any(len(one.case.calls) > 1 for one in shown):
            self.habits = replace(self.habits, single_calls=True)
        return shown

    def _case(self, case: Case) -> Rendered | None:
        """Returns what the model would have written; None if the template refuses the message."""
        answer = self._rendered([self._user, self._message(case)], begins_answer=False)
        if answer is None:
            return None
        cut = _common(self._prompt, answer)
        return Rendered(case, answer[:cut], self._prompt, self._without_end(answer[cut:]))

    def _message(self, case: Case) -> dict[str, Any]:
        calls: list[dict[str, Any]] = []
        for at, (name, arguments) in enumerate(case.calls):
            given = json.dumps(arguments) if self.habits.text_arguments else arguments
            identifier = _SHORT_ID if self.habits.short_ids else _LONG_ID
            identifier = f"{identifier[:-1]}{at}"
            function = {"name": name, "arguments": given}
            calls.append({"id": identifier, "type": "function", "function": function})
        message = {"role": "assistant", "content": case.text, "tool_calls": calls}
        if case.reasoning:
            # Templates differ in the name.
            message |= dict.fromkeys(("reasoning_content", "reasoning", "thinking"), case.reasoning)
        return message

    def _rendered(self, messages: Sequence[Any], *, begins_answer: bool) -> str | None:
        return self._render(messages, TOOLS, begins_answer=begins_answer)

    @cached_property
    def _prompt(self) -> str:
        return self._rendered([self._user], begins_answer=True) or ""

    @cached_property
    def _end(self) -> str:
        """What the template writes behind an answer."""
        plain = {"role": "assistant", "content": _PLAIN}
        return (self._rendered([self._user, plain], begins_answer=False) or "").rpartition(_PLAIN)[
            2
        ]

    def _without_end(self, answer: str) -> str:
        return answer.removesuffix(self._end) if self._end else answer


def _shows(one: Rendered) -> bool:
    """Returns whether all of a case's calls are written."""
    if any(name not in one.answer for name, _ in one.case.calls):
        return False
    place = 0
    for name, _ in one.case.calls:
        place = one.answer.find(name, place) + len(name)
        if place < len(name):
            return False
    values = [value for _, arguments in one.case.calls for value in arguments.values()]
    if not all(value in one.answer for value in values if value in ("Paris", "London")):
        return False
    return one.case.text in one.answer and one.case.reasoning in one.answer


def _common(prompt: str, whole: str) -> int:
    """Returns where the answer begins in a whole conversation."""
    size = next(
        (at for at, pair in enumerate(zip(prompt, whole, strict=False)) if pair[0] != pair[1]),
        min(len(prompt), len(whole)),
    )
    # Two marks may begin alike: the answer begins before its mark.
    if size < len(prompt) and (cut := re.search(r"(<[^<>\n]*|\[[^\[\]\n]*)\Z", whole[:size])):
        return cut.start()
    return size


@dataclass
class Read:
    """What was read of an answer."""

    text: str = ""
    behind: str = ""
    """Text behind the first call."""
    reasoning: str = ""
    calls: list[tuple[str, Any]] = field(default_factory=list[tuple[str, Any]])


def read(reader: Reading, answer: str) -> Read:
    """Returns an answer's parts. Raises `ValueError` if arguments are no JSON."""
    found, written = Read(), list[str]()
    for event in [*reader.add(answer), *reader.finish()]:
        match event:
            case Text(reasoning=True):
                found.reasoning += event.text
            case Text() if found.calls:
                found.behind += event.text
            case Text():
                found.text += event.text
            case CallBegun():
                found.calls.append((event.name, None))
                written.append("")
            case CallArguments():
                written[event.index] += event.text
            case _:
                pass
    names = [name for name, _ in found.calls]
    found.calls = [(name, json.loads(text)) for name, text in zip(names, written, strict=True)]
    return found


def is_read(one: Rendered, readers: Sequence[Reading]) -> tuple[bool, int]:
    """Returns whether a case is read back exactly, and how much text is left behind the calls.

    Args:
        readers: for the conversation before the answer, and with the beginning of an answer.
            Templates leave out of past answers what they begin an answer with.
    """
    case = one.case
    for reader in readers:
        try:
            found = read(reader, one.answer)
        except ValueError:
            continue
        if found.calls != [(name, dict(arguments)) for name, arguments in case.calls]:
            continue
        # Some templates write the text of a message with calls behind them, or as reasoning.
        text = _ROLE.sub("", found.text).strip()
        places = (
            [text] if text else ["", _ENDS.sub("", found.behind).strip(), found.reasoning.strip()]
        )
        thought = not case.reasoning or found.reasoning.strip() == case.reasoning
        if case.text in places and thought:
            return True, len(found.behind.strip())
    return False, 0


def choose(
    source: str,
    probe: Probe | None,
    *,
    tokens: Sequence[str] = (),
    thinks: bool = False,
    declared: Declared | None = None,
) -> Choice:
    """Returns how the answers of a model with this chat template are read.

    Args:
        source: the chat template.
        tokens: those that the tokenizer adds, which name a format if the template does not.
        thinks: whether the tokenizer has a token that ends reasoning.
        declared: a `Declared`, if the tokenizer has a response template.
    """
    cases = probe.cases if probe else ()
    framing = framing_of("\n".join([source, *(one.answer for one in cases)]), thinks=thinks)
    base = Choice(framing=framing, habits=probe.habits if probe else Habits(), rendered=cases)
    best = _best(base, cases)
    if declared is not None:
        # Of two that read the same, the format of the table streams, and can be enforced.
        own = _tried(replace(base, is_declared=True), cases, declared)
        if best is None or _score(own) > _score(best):
            return own
    if best is not None:
        return best
    if cases:
        return replace(base, results={one.case.name: "not read" for one in cases})
    shown = [source, "\n".join(tokens) if "tools" in source else ""]
    form = next((one for text in shown for one in FORMATS if _is_shown(one, text)), None)
    return replace(base, form=form)


def _best(base: Choice, cases: Sequence[Rendered]) -> Choice | None:
    if not cases:
        return None
    first = cases[0]
    tried = [
        _tried(replace(base, form=form), cases)
        for form in FORMATS
        if form.at_start
        or form.in_header
        or any(mark in first.answer or first.prompt.endswith(mark) for mark in form.openings)
    ]
    proven = [one for one in tried if one.is_proven]
    return max(proven, key=_score) if proven else None


def _score(choice: Choice) -> tuple[int, int]:
    return sum(one == "read" for one in choice.results.values()), -choice.left


def _is_shown(form: Format, source: str) -> bool:
    return bool(form.in_template) and bool(re.search(form.in_template, source, re.DOTALL))


def _tried(choice: Choice, cases: Sequence[Rendered], declared: Declared | None = None) -> Choice:
    results = dict.fromkeys((case.name for case in CASES), "not written")
    behind = 0
    for one in cases:
        prompts = (one.prompt, one.begun)
        readers = [reader_of(choice, prompt, TOOLS, declared) for prompt in prompts]
        same, rest = is_read(one, readers)
        results[one.case.name] = "read" if same else "not read"
        behind += rest
    proven = results[CASES[0].name] == "read"
    return replace(choice, results=results, left=behind, is_proven=proven)


def reader_of(
    choice: Choice,
    prompt: str,
    tools: Sequence[Any],
    declared: Declared | None = None,
    *,
    either: bool = False,
) -> Reader | DeclaredReader:
    """Returns what reads an answer to a prompt.

    Args:
        either: the answer is nothing but calls, or it is all text.
    """
    ends = ends_of_reasoning(choice.framing, prompt)
    if choice.is_declared and declared is not None:
        return declared.reader(begun_reasoning(choice.framing, prompt), tools)
    headers = choice.framing.headers
    header = headers is not None and prompt.endswith(f"{headers.opens[0]}assistant")
    marks = choice.form.openings if choice.form else ()
    called = next((mark for mark in marks if prompt.endswith(mark)), "")
    return Reader(
        choice.tongue, tools=tools, either=either, ends=ends, header=header, called=called
    )


def begun_reasoning(framing: Framing, prompt: str) -> str:
    """Returns the mark of reasoning that a prompt ends with; empty: none."""
    text = prompt.rstrip()
    marks = [mark for mark in framing.begins if text.endswith(mark.rstrip())]
    return max(marks, key=len, default="")


def ends_of_reasoning(framing: Framing, prompt: str) -> Sequence[str]:
    """Returns what ends the reasoning that a prompt has begun; empty: it has begun none."""
    mark = begun_reasoning(framing, prompt)
    return [dict(framing.reasoning)[mark]] if mark else []
