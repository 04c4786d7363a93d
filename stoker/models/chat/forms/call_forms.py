"""The form of answers with optional or required tool calls, in a model's own format."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stoker.models.chat.answers.call_formats.calls import UnwritableCallError
from stoker.models.chat.answers.call_formats.format import Format, behind
from stoker.models.chat.answers.call_formats.framing import Framing
from stoker.models.chat.forms.call_grammar import Lark
from stoker.models.chat.forms.lark import SHARED, spelt

_PLAIN = Framing()


@dataclass(frozen=True, kw_only=True)
class Offered:
    """A function that the answer may call."""

    name: str
    schema: Any
    strict: bool
    field: str
    """The request's field of the function's schema."""


@dataclass(frozen=True, kw_only=True)
class CallForm:
    """Rules of a call form in Lark. Texts in them stand between `«` and `»`."""

    form: Format
    lark: Lark
    functions: Sequence[Offered]
    several: bool
    text_tokens: str
    """Special tokens that an answer's text may contain, as a Lark list. Empty: none."""
    thought_tokens: str
    """Special tokens that reasoning may contain."""
    framing: Framing = _PLAIN

    def required(self, *, ends: str | None) -> str:
        """Returns the rules of an answer of calls only, with reasoning before them.

        Args:
            ends: mark that ends the reasoning that the prompt has begun. None if it has begun none.
        """
        if self.form.in_header:
            return self._rules("start: message* headed")
        thoughts = [f"«{begin.strip()}» {self._to(end)}" for begin, end in self.framing.reasoning]
        before = f"({' | '.join(thoughts)})? SPACE?" if thoughts else ""
        if ends is not None:
            before = f"{self._to(ends)} SPACE?"
        frames = f"({' | '.join(self._frames())})*" if self._frames() else ""
        return self._rules(f"start: SPACE? {before} {frames} {self._calls()}")

    def free(self) -> str:
        """Returns the rules of an answer of text that may call tools."""
        if self.form.in_header:
            return self._rules("start: message* (headed | final)?")
        if self.form.at_start:
            other = self.lark.other([function.name for function in self.functions])
            self.lark.lines.append(f"OTHER: /{other}/")
            text = "OTHER? (special TEXT?)*" if self.text_tokens else "OTHER?"
            marks = [mark for mark in self.form.openings if self.lark.special(mark)]
            marked = [f"{spelt(mark)} {self._section(opened=mark)}" for mark in marks]
            return self._rules(f"start: {' | '.join([self._headed(), text, *marked])}")
        calls = " | ".join(self._marked(mark) for mark in self.form.openings)
        if self.several and (self._is_repeated or self.form.again):
            return self._rules(f"start: (said ({calls}))* said")
        return self._rules(f"start: said ({calls})?")

    def alone(self, other: str, *, lines: bool) -> str:
        """Returns the rules of an answer of calls only, or of another form.

        Args:
            other: the name of the other form's grammar.
            lines: True if empty lines may come first.
        """
        is_object = self.form.at_start and self.form.layout == "§object"
        calls = self._whole() if is_object else self._calls()
        first = "start: LINES? answer\nLINES: /\\n{1,2}/" if lines else "start: answer"
        return self._rules(f"{first}\nanswer: {calls} | {other}")

    # --- parts ---

    def _rules(self, start: str) -> str:
        messages = self._messages() if self.form.in_header else []
        lines = [start, *messages, *self.lark.lines, SHARED]
        tokens, thoughts = self.text_tokens, self.thought_tokens
        lines.append(f"special: {tokens}" if tokens else "")
        lines.append("free: (TEXT | special)*" if tokens else "free: TEXT?")
        lines.append(f"thought: (TEXT | {thoughts})*" if thoughts else "thought: TEXT?")
        marks = self.form.openings
        frames = [
            spelt(framing_mark)
            for framing_mark in self.framing.literals
            if self.lark.special(framing_mark)
            and not any(mark.startswith(framing_mark) for mark in marks)
        ]
        alternatives = ["TEXT", *(["special"] if tokens else []), *frames]
        lines.append(f"said: ({' | '.join(alternatives)})*")
        return "\n".join(line for line in lines if line)

    def _to(self, mark: str) -> str:
        """Returns the expression of reasoning with the mark that ends it."""
        mark = mark.strip()
        if self.lark.special(mark):
            return f"thought «{mark}»"
        return f"thought {self.lark.lazy(f'TEXT? {json.dumps(mark)}')}"

    def _frames(self) -> Sequence[str]:
        """Returns the expressions of marks that may enclose a text, even an empty one."""
        headers = self.framing.headers
        expressions = [spelt(mark) for mark in self.framing.dropped if self.lark.special(mark)]
        if headers and self.lark.special(headers.close):
            expressions.append(f"/ ?to=[^<]{{1,80}}/ «{headers.close}»")
        return expressions

    @property
    def _is_repeated(self) -> bool:
        """True if each call has separate marks."""
        form = self.form
        return not form.section[0] and not form.separator.strip() and not form.at_start

    def _marked(self, mark: str) -> str:
        """Returns the expression of a text, the mark that ends it, and calls."""
        text, rest = self.lark.split(mark)
        head = self.lark.lazy(f"TEXT? {json.dumps(text)}") if text else ""
        return f"{head} {spelt(rest)} {self._section(opened=mark)}"

    def _headed(self) -> str:
        """Returns the expression of calls at the start of an answer, without a mark."""
        options = [
            self.lark.headed(function.name, function.schema, strict=function.strict)
            for function in self.functions
        ]
        return f"({' | '.join(options)}){self._more()} {self._close()}"

    def _calls(self) -> str:
        if self.form.in_header:
            return "headed"
        if self._is_repeated and self.several:
            call = self._call(opened="")
            return f"{call} (SPACE? {call})*"
        return self._section(opened="")

    def _whole(self) -> str:
        functions = self.functions
        either = [
            self.lark.whole(function.name, function.schema, strict=function.strict)
            for function in functions
        ]
        return self.lark.named(" | ".join(either), "call")

    def _section(self, *, opened: str) -> str:
        """Returns the expression of all calls with the marks around them.

        Args:
            opened: the mark that begins them, if it was written.
        """
        before = behind(self.form.section[0], opened)
        first = self._call(opened="" if self.form.section[0] else opened)
        return f"{spelt(before)} {first}{self._more()} {self._close()}"

    def _more(self) -> str:
        if self._is_repeated or not self.several:
            return ""
        return f" (SPACE? {spelt(self.form.separator.strip())} SPACE? {self._call(opened='')})*"

    def _close(self) -> str:
        after = self.form.section[1].strip()
        return f"SPACE? {spelt(after)}" if after else ""

    def _call(self, *, opened: str) -> str:
        options: list[str] = []
        for function in self.functions:
            try:
                call = self.lark.call(
                    function.name, function.schema, strict=function.strict, opened=opened
                )
            except UnwritableCallError as error:
                error.field = function.field
                raise
            options.append(f"({call})")
        return self.lark.named(" | ".join(options), "call")

    def _messages(self) -> list[str]:
        """Returns the rules of an answer in OpenAI's Harmony format."""
        calls: list[str] = []
        for function in self.functions:
            to = f"« to=functions.{function.name}»"
            form = "(SPACE? «<|constrain|>»? «json»)?"
            heads = f"({to} «<|channel|>commentary» | «<|channel|>commentary» {to})"
            self.lark.strict = function.strict
            body = self.lark.rule(function.schema)
            calls.append(f"{heads} {form} SPACE? «<|message|>» {body} «<|call|>»?")
        behind = "«<|end|><|start|>assistant»"
        return [
            f'message: «<|channel|>» ("analysis" | "commentary") «<|message|>» thought {behind}',
            f"headed: {' | '.join(calls)}",
            "final: «<|channel|>final» (SPACE? «<|constrain|>» IDENTIFIER)? «<|message|>» thought",
        ]
