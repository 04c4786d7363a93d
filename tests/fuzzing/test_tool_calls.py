"""Tool calls in a model's output are read alike for any division into pieces, and are never
invented.
"""

import json
import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from hypothesis import strategies as st

from stoker.models.chat.answers.answer_events import Event
from stoker.models.chat.answers.dialect import Dialect
from tests.fuzzing.support import cuts, fuzz, pieces
from tests.llm.support import TEMPLATES, Joined, joined, tokenizer

NAMES = ["get_weather", "get_time"]
TOOLS: list[dict[str, Any]] = [{"type": "function", "function": {"name": name}} for name in NAMES]
SAID = st.sampled_from(
    ["I will look.", "é😀", "{Paris}", "a < b", "f(x)", '"name"', "[1] ", "\\", "} "]
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=4) | st.sampled_from(
    [
        "<tool_call>",
        "[TOOL_CALLS]",
        "}}",
        '"',
        "\\",
        '"}, {"name": "x"',
        "😀",
        "\n",
        "<|python_tag|>",
    ]
)
# A string with a format's end mark would end the call for any reader.
INNER = TEXTS | st.none() | st.booleans() | st.integers() | st.floats(-1e9, 1e9)
VALUES = st.recursive(
    INNER,
    lambda one: st.lists(one, max_size=3) | st.dictionaries(TEXTS, one, max_size=3),
    max_leaves=8,
)
ARGUMENTS = st.dictionaries(st.sampled_from(["city", "n", "a b", "é", '"']), VALUES, max_size=3)
KEYWORDS = st.dictionaries(st.sampled_from(["city", "n", "unit"]), VALUES, max_size=3)
MARKS = [
    *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "<think>", "</think>", "\n"),
    *(
        '{"name": "get_time", "arguments": {',
        '{"name": "get_time", "parameters": {',
        '"a": "',
        "}}",
    ),
    *(
        "[",
        "]",
        "{",
        "}",
        "get_time(",
        "city='x'",
        ")",
        ", ",
        '"',
        "\\",
        "<",
        "<tool",
        "[TOOL",
        "é",
    ),
    *(
        '{"name"',
        ": ",
        '"get_time"',
        ', "arguments"',
        '"arguments": "{}"',
        "null",
        "1e999",
        "NaN",
        " ",
    ),
]
Calls = list[tuple[str, Any]]


@cache
def dialect(form: str) -> Dialect:
    return Dialect(tokenizer(TEMPLATES[form]))


def read(form: str, parts: Sequence[str], *, either: bool = False) -> Joined:
    reader = dialect(form).reader("", tools=TOOLS, either=either)
    assert reader is not None
    events: list[Event] = []
    for part in parts:
        new_events = reader.add(part)
        # A piece becomes a few events, without repetitions.
        assert either or len(new_events) <= 8 * len(part) + 1
        events += new_events
    answer = joined([*events, *reader.finish()])
    assert reader.calls == len(answer.calls)
    for call in answer.calls:
        # The answer can be encoded as UTF-8.
        f"{call.name}{call.arguments}".encode()
    return answer


def spelt(draw: st.DrawFn, value: Any) -> str:
    return json.dumps(
        value, ensure_ascii=draw(st.booleans()), indent=draw(st.sampled_from([None, None, 1]))
    )


def an_object(draw: st.DrawFn, name: str, arguments: Any, key: str) -> str:
    members = [("name", name), (key, arguments)]
    if draw(st.integers(0, 4)) == 0 and key == "arguments":
        members = members[::-1]
    return spelt(draw, dict(members))


def answer(draw: st.DrawFn, form: str) -> tuple[str, Calls, str]:
    """Draws a model's output in its format, with the calls in it and the text next to them."""
    several = form != "llama3"
    count = draw(st.integers(1, 3 if several else 1))
    arguments = KEYWORDS if form == "pythonic" else ARGUMENTS
    calls = [(draw(st.sampled_from(NAMES)), draw(arguments)) for _ in range(count)]
    if form == "hermes":
        # The end mark ends a call even within a string.
        space = st.sampled_from(["", "\n", " "])
        prose = draw(st.sampled_from(["", "I will look.", "a < b é😀"]))
        text = prose
        for name, values in calls:
            body = an_object(draw, name, values, "arguments")
            text += f"<tool_call>{draw(space)}{body}{draw(space)}</tool_call>{draw(space)}"
        return text, calls, prose
    if form == "mistral":
        prose = draw(st.sampled_from(["", "I will look.", "a [ b"]))
        body = ", ".join(an_object(draw, name, values, "arguments") for name, values in calls)
        return f"{prose}[TOOL_CALLS]{draw(st.sampled_from(['', ' ']))}[{body}]", calls, prose
    if form == "llama3":
        tag = draw(st.sampled_from(["", "<|python_tag|>", "\n"]))
        return tag + an_object(draw, *calls[0], "parameters"), calls, ""
    each = [
        f"{name}({', '.join(f'{key}={_python(draw, item)}' for key, item in values.items())})"
        for name, values in calls
    ]
    return f"[{', '.join(each)}]", calls, ""


def _python(draw: st.DrawFn, value: Any) -> str:
    return draw(st.sampled_from([repr(value), json.dumps(value)]))


FORMS = st.sampled_from(list(TEMPLATES))


@st.composite
def answers(draw: st.DrawFn) -> tuple[str, list[str], Calls, str]:
    form = draw(FORMS)
    text, calls, prose = answer(draw, form)
    return form, pieces(text, draw(cuts(len(text)))), calls, prose


@st.composite
def broken(draw: st.DrawFn) -> tuple[str, list[str]]:
    """Draws an output with a damaged structure, or one that is composed of marks."""
    form = draw(FORMS)
    if draw(st.booleans()):
        text = "".join(draw(st.lists(st.sampled_from(MARKS) | SAID, max_size=10)))
    else:
        text, _, _ = answer(draw, form)
        for _ in range(draw(st.integers(1, 3))):
            at = draw(st.integers(0, len(text)))
            middle = draw(st.sampled_from([*MARKS, ""]))
            text = text[:at] + middle + text[at + draw(st.integers(0, 3)) :]
    return form, pieces(text, draw(cuts(len(text))))


def begins_a_call(form: str, text: str) -> bool:
    """Returns whether a text contains the start of a call in this format, judged by its words
    alone.
    """
    return {
        "hermes": "<tool_call>" in text,
        "mistral": "[TOOL_CALLS]" in text,
        "llama3": bool(re.search(r'^\s*\{\s*"name"\s*:|<\|python_tag\|>', text)),
        "pythonic": bool(re.match(r"\s*\[\s*[A-Za-z_][\w.]*\(", text)),
    }[form]


@fuzz(answers(), examples=60)
def test_the_calls_that_were_written(case: tuple[str, list[str], Calls, str]) -> bool:
    form, parts, calls, prose = case
    parsed = read(form, parts)
    assert [(call.name, json.loads(call.arguments)) for call in parsed.calls] == calls
    assert (parsed.text.strip(), parsed.reasoning) == (prose, "")
    return True


@fuzz(broken(), examples=100)
def test_read_alike_in_any_pieces(case: tuple[str, list[str]]) -> bool:
    form, parts = case
    text = "".join(parts)
    whole = read(form, [text])
    assert read(form, parts).plain == whole.plain
    outside = re.sub(r"<think>.*?(</think>|\Z)", "", text, flags=re.DOTALL)
    if not (begins_a_call(form, text) or begins_a_call(form, outside)):
        assert whole.calls == []
        assert (
            whole.text + whole.reasoning == re.sub("<think>|</think>", "", text) or "think" in text
        )
    # An answer may start with the end of a reasoning that has no start.
    is_ended = text.lstrip().startswith("</think>")
    if not begins_a_call(form, text) and "<think>" not in text and not is_ended:
        assert (whole.text, whole.reasoning) == (text, "")
    # The text is neither repeated nor invented.
    remaining = iter(text)
    assert all(character in remaining for character in whole.text)
    return bool(whole.calls)


@fuzz(broken(), examples=60)
def test_either_calls_or_text_in_any_pieces(case: tuple[str, list[str]]) -> bool:
    form, parts = case
    whole = read(form, ["".join(parts)], either=True)
    assert read(form, parts, either=True).plain == whole.plain
    assert all(call.name in NAMES for call in whole.calls)
    return bool(whole.calls)
