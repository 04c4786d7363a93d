"""Chooses how a model's answers are read, based on its chat template's output for known messages.

A chat template writes the assistant's messages of a conversation in the notation on which the model
was trained. So known calls are rendered, and the format that reads them back exactly is chosen.
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
"""Matches marks of the message's role."""
_ENDS = re.compile(r"(\s*<\|?[\w|]+\|?>)+\s*\Z")
"""Matches marks of the message's end."""
_PLAIN = "Nothing but text 4711."
_SHOWN = [(item, re.compile(item.in_template, re.DOTALL)) for item in FORMATS if item.in_template]
"""Formats with the pattern that identifies them in a chat template. The engine host compiles them
once for all replicas.
"""


class Render(Protocol):
    """Renders a conversation. Returns None if the chat template rejects it."""

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
    """Known message of the assistant."""

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
    """Output of a chat template for a case."""

    case: Case
    prompt: str
    """The conversation before the answer."""
    begun: str
    """The conversation followed by the template's beginning of an answer."""
    answer: str


@dataclass(frozen=True, kw_only=True)
class Habits:
    """Requirements of a chat template for messages with calls."""

    text_arguments: bool = False
    """True if arguments must be JSON text rather than an object."""
    short_ids: bool = False
    """True if identifiers must have nine letters and digits."""
    single_calls: bool = False
    """True if a message may hold only one call."""


@dataclass(frozen=True, kw_only=True)
class FormatChoice:
    """Result of the choice: how a model's answers are read."""

    framing: Framing
    form: Format | None = None
    is_declared: bool = False
    """True if answers are read with the declared response template."""
    habits: Habits = field(default_factory=Habits)
    results: Mapping[str, str] = field(default_factory=dict[str, str])
    """Maps a case to `read`, `not read`, or `not written` by the chat template."""
    left: int = 0
    """Number of characters after the calls that were returned as text."""
    is_proven: bool = False
    """True if known calls were read back. Otherwise, the choice is based on marks in the
    template.
    """
    rendered: Sequence[Rendered] = ()

    @property
    def tongue(self) -> Tongue:
        return Tongue(framing=self.framing, form=self.form, short_ids=self.habits.short_ids)


class Probe:
    """Output of one chat template for the known messages."""

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
        attempts = [first, *(self._case(case) for case in CASES[1:])]
        shown = [rendered for rendered in attempts if rendered is not None and _shows(rendered)]
        if not any(len(rendered.case.calls) > 1 for rendered in shown):
            self.habits = replace(self.habits, single_calls=True)
        return shown

    def _case(self, case: Case) -> Rendered | None:
        """Returns the answer as the model would write it. None if the template rejects the
        message.
        """
        answer = self._rendered([self._user, self._message(case)], begins_answer=False)
        if answer is None:
            return None
        cut = _common(self._prompt, answer)
        return Rendered(case, answer[:cut], self._prompt, self._without_end(answer[cut:]))

    def _message(self, case: Case) -> dict[str, Any]:
        calls: list[dict[str, Any]] = []
        for at, (name, arguments) in enumerate(case.calls):
            call_arguments = json.dumps(arguments) if self.habits.text_arguments else arguments
            identifier = _SHORT_ID if self.habits.short_ids else _LONG_ID
            identifier = f"{identifier[:-1]}{at}"
            function = {"name": name, "arguments": call_arguments}
            calls.append({"id": identifier, "type": "function", "function": function})
        message = {"role": "assistant", "content": case.text, "tool_calls": calls}
        if case.reasoning:
            # Templates use different names for this field.
            message |= dict.fromkeys(("reasoning_content", "reasoning", "thinking"), case.reasoning)
        return message

    def _rendered(self, messages: Sequence[Any], *, begins_answer: bool) -> str | None:
        return self._render(messages, TOOLS, begins_answer=begins_answer)

    @cached_property
    def _prompt(self) -> str:
        return self._rendered([self._user], begins_answer=True) or ""

    @cached_property
    def _end(self) -> str:
        """Text that the template writes after an answer."""
        plain = {"role": "assistant", "content": _PLAIN}
        return (self._rendered([self._user, plain], begins_answer=False) or "").rpartition(_PLAIN)[
            2
        ]

    def _without_end(self, answer: str) -> str:
        return answer.removesuffix(self._end) if self._end else answer


def _shows(one: Rendered) -> bool:
    """Returns True if the template writes all of a case's calls."""
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
    """Returns the index at which the answer begins in a whole conversation."""
    size = next(
        (at for at, pair in enumerate(zip(prompt, whole, strict=False)) if pair[0] != pair[1]),
        min(len(prompt), len(whole)),
    )
    # Two marks may share a beginning. The answer then begins before its mark.
    if size < len(prompt) and (cut := re.search(r"(<[^<>\n]*|\[[^\[\]\n]*)\Z", whole[:size])):
        return cut.start()
    return size


@dataclass
class Read:
    """Parts that were read from an answer."""

    text: str = ""
    behind: str = ""
    """Text after the first call."""
    reasoning: str = ""
    calls: list[tuple[str, Any]] = field(default_factory=list[tuple[str, Any]])


def read(reader: Reading, answer: str) -> Read:
    """Returns an answer's parts. Raises `ValueError` if arguments are invalid JSON."""
    result, written = Read(), list[str]()
    for event in [*reader.add(answer), *reader.finish()]:
        match event:
            case Text(reasoning=True):
                result.reasoning += event.text
            case Text() if result.calls:
                result.behind += event.text
            case Text():
                result.text += event.text
            case CallBegun():
                result.calls.append((event.name, None))
                written.append("")
            case CallArguments():
                written[event.index] += event.text
            case _:
                pass
    names = [name for name, _ in result.calls]
    result.calls = [(name, json.loads(text)) for name, text in zip(names, written, strict=True)]
    return result


def is_read(one: Rendered, readers: Sequence[Reading]) -> tuple[bool, int]:
    """Returns True if a case is read back exactly, and the amount of text after the calls.

    Args:
        readers: one for the conversation before the answer, and one that includes the beginning of
            an answer. Templates omit that beginning from past answers.
    """
    case = one.case
    for reader in readers:
        try:
            result = read(reader, one.answer)
        except ValueError:
            continue
        if result.calls != [(name, dict(arguments)) for name, arguments in case.calls]:
            continue
        # Some templates write the text of a message with calls after them, or as reasoning.
        text = _ROLE.sub("", result.text).strip()
        places = (
            [text] if text else ["", _ENDS.sub("", result.behind).strip(), result.reasoning.strip()]
        )
        thought = not case.reasoning or result.reasoning.strip() == case.reasoning
        if case.text in places and thought:
            return True, len(result.behind.strip())
    return False, 0


def choose(
    source: str,
    probe: Probe | None,
    *,
    tokens: Sequence[str] = (),
    thinks: bool = False,
    declared: Declared | None = None,
) -> FormatChoice:
    """Returns how the answers of a model with this chat template are read.

    Args:
        source: the chat template.
        tokens: tokens that the tokenizer adds. They identify a format if the template does not.
        thinks: True if the tokenizer has a token that ends reasoning.
        declared: a `Declared`, if the tokenizer has a response template.
    """
    cases = probe.cases if probe else ()
    framing = framing_of("\n".join([source, *(item.answer for item in cases)]), thinks=thinks)
    base = FormatChoice(framing=framing, habits=probe.habits if probe else Habits(), rendered=cases)
    best = _best(base, cases)
    if declared is not None:
        # If both read equally well, the format of the table is preferred: it streams and can be
        # enforced.
        declared_choice = _tried(replace(base, is_declared=True), cases, declared)
        if best is None or _score(declared_choice) > _score(best):
            return declared_choice
    if best is not None:
        return best
    if cases:
        return replace(base, results={item.case.name: "not read" for item in cases})
    shown = [source, "\n".join(tokens) if "tools" in source else ""]
    form = next((item for text in shown for item, mark in _SHOWN if mark.search(text)), None)
    return replace(base, form=form)


def _best(base: FormatChoice, cases: Sequence[Rendered]) -> FormatChoice | None:
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
    proven = [choice for choice in tried if choice.is_proven]
    return max(proven, key=_score) if proven else None


def _score(choice: FormatChoice) -> tuple[int, int]:
    return sum(result == "read" for result in choice.results.values()), -choice.left


def _tried(
    choice: FormatChoice, cases: Sequence[Rendered], declared: Declared | None = None
) -> FormatChoice:
    results = dict.fromkeys((case.name for case in CASES), "not written")
    behind = 0
    for rendered in cases:
        prompts = (rendered.prompt, rendered.begun)
        readers = [reader_of(choice, prompt, TOOLS, declared) for prompt in prompts]
        same, rest = is_read(rendered, readers)
        results[rendered.case.name] = "read" if same else "not read"
        behind += rest
    proven = results[CASES[0].name] == "read"
    return replace(choice, results=results, left=behind, is_proven=proven)


def reader_of(
    choice: FormatChoice,
    prompt: str,
    tools: Sequence[Any],
    declared: Declared | None = None,
    *,
    either: bool = False,
) -> Reader | DeclaredReader:
    """Returns a reader of an answer to a prompt.

    Args:
        either: if True, the answer consists either only of calls or only of text.
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
    """Returns the mark of reasoning at the end of a prompt. Empty if it has none."""
    text = prompt.rstrip()
    marks = [mark for mark in framing.begins if text.endswith(mark.rstrip())]
    return max(marks, key=len, default="")


def ends_of_reasoning(framing: Framing, prompt: str) -> Sequence[str]:
    """Returns the marks that end the reasoning that a prompt has begun. Empty if it has begun
    none.
    """
    mark = begun_reasoning(framing, prompt)
    return [dict(framing.reasoning)[mark]] if mark else []
