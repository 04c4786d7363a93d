"""Converts prompts to token sequences: chat templates, texts, token lists, with their limits."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import jinja2
import msgspec

from stoker.base.media_limits import MediaLimits
from stoker.models.chat.answers.dialect import Dialect
from stoker.models.chat.prompts import earlier_calls
from stoker.models.chat.prompts.history import (
    fitted,
    has_later_system,
    without_later_system,
)
from stoker.models.chat.prompts.pictures import ImagePrompts
from stoker.models.chat.prompts.rendering import Renderer, TemplateDataError, TemplateLimitError
from stoker.models.chat.prompts.templates import ChatTemplate, TrialRenderings
from stoker.models.chat.prompts.truncation import Messages, may_fit, shortened
from stoker.models.llm.checkpoint import load_tokenizer
from stoker.models.llm.generation_defaults import Defaults
from stoker.models.llm.interface import Features
from stoker.models.stages.base import ContextLengthError, InputError
from stoker.models.stages.known_tokens import refuse_needed
from stoker.wire.generation_request import (
    Conversation,
    Cut,
    Generation,
    Prompt,
    Sampling,
    as_text,
)


@dataclass(frozen=True)
class Prepared:
    """Prompt in the form that the model accepts."""

    tokens: list[int]
    text: str
    """End of the prompt's text, which may have begun the answer."""
    media: Features | None = None
    """Features of its images."""


class Prompts:
    """Prepares prompts for one model."""

    def __init__(
        self,
        folder: Path,
        *,
        max_length: int,
        vocabulary: int,
        images: MediaLimits | None = None,
        tokenizer: Any = None,
        renderer: Renderer | None = None,
    ) -> None:
        """
        Args:
            images: limits of a vision model. None for a text model.
            tokenizer: tokenizer of the folder, if it was already loaded.
            renderer: renders the chat template. None creates a new renderer.

        Raises:
            TemplateLimitError: the chat template exceeds a limit.
            UnknownTokenError: the chat template needs a token for which the model has no embedding.
        """
        self.tokenizer = tokenizer or load_tokenizer(folder)
        self._template = ChatTemplate(self.tokenizer, renderer)
        self._images = (
            ImagePrompts(folder, self.tokenizer, self._template, images) if images else None
        )
        self._template.check()
        self.defaults = Defaults.read(
            folder,
            self.tokenizer,
            ends=self._template.ends_of_turn(),
            max_length=max_length,
            vocabulary=vocabulary,
        )
        self.dialect = Dialect(self.tokenizer, TrialRenderings(self._template))
        self._max_length = max_length
        self._vocabulary = vocabulary
        self._check_template()
        self.hidden = frozenset(self._unseen())
        """Tokens that add nothing to an answer's text."""

    def prepare(
        self, prompt: Prompt, place: str, wished: int | None = None, cut: Cut | None = None
    ) -> Prepared:
        """Returns a prompt's tokens.

        Args:
            place: field of the request that contains the prompt, for errors.
            wished: tokens of the answer. A conversation may be shortened to make room for them.
            cut: how many of the prompt's tokens are kept.

        Raises:
            InputError: the prompt cannot be rendered, is empty or has tokens that the model does
                not know.
        """
        media: Features | None = None
        if isinstance(prompt, Conversation):
            if prompt.truncate:
                prompt = self._shortened(prompt, place, wished)
            text, tokens, media = self._conversation(prompt, place)
            text = _THINK if _continues_reasoning(prompt) else text
        elif isinstance(prompt, str):
            text = prompt
            tokens = self._encoded(prompt, special=True)
        else:
            text, tokens = "", prompt
        if not tokens:
            raise _refusal("is empty: the model needs at least one token to continue.", place)
        self._known(tokens, place)
        prepared = Prepared(tokens, text[-64:], media)
        return prepared if cut is None else self._cut(prepared, cut, wished)

    @property
    def max_length(self) -> int:
        """Maximum number of tokens of a prompt and its answer."""
        return self._max_length

    @property
    def vocabulary(self) -> int:
        """Number of tokens that the model knows."""
        return self._vocabulary

    def tokens(self, prompt: str | Conversation, place: str, *, special: bool) -> list[int]:
        """Returns the tokens of a prompt of any length. Raises `InputError`.

        Args:
            special: True adds the tokenizer's special tokens.
        """
        if isinstance(prompt, str):
            return self._encoded(prompt, special=special)
        text, tokens, media = self._conversation(prompt, place)
        if special and media is not None:
            raise _refusal("must be false for a conversation with images.", "add_special_tokens")
        return self._encoded(text, special=True) if special else tokens

    def _cut(self, prompt: Prepared, cut: Cut, wished: int | None) -> Prepared:
        """Returns the prompt without the tokens to cut off. Raises `InputError`."""
        limit = cut.tokens if cut.tokens > 0 else max(1, self._max_length - max(1, wished or 1))
        if len(prompt.tokens) <= limit:
            return prompt
        if prompt.media is not None:
            raise _refusal("cannot truncate a prompt that has images: leave it out.", _CUT_FIELD)
        if cut.side == "left":
            return Prepared(prompt.tokens[-limit:], prompt.text)
        tokens = prompt.tokens[:limit]
        return Prepared(tokens, str(self.tokenizer.decode(tokens))[-64:])

    def limited(self, prompt: Prepared, generation: Generation, place: str) -> Sampling:
        """Returns the sampling options with the final number of tokens.

        Raises `ContextLengthError` on an overflow, `InputError` for unknown tokens.
        """
        size, most = len(prompt.tokens), self._max_length
        sampling = generation.sampling
        wished = sampling.max_tokens
        name = place.partition("[")[0]
        if size >= most:
            raise ContextLengthError(
                most,
                f"your {name} resulted in {size} tokens, which leaves none for the answer. "
                f"Please reduce the length of the {name}.",
                field=place,
            )
        if wished is not None and generation.lowers_limit:
            wished = min(wished, most - size)
        if wished is not None and size + wished > most:
            raise ContextLengthError(
                most,
                f"you requested {size + wished} tokens ({size} in the {name}, {wished} in the "
                f"completion). Please reduce the length of the {name}, or "
                f"'{generation.limit_field}'.",
                field=generation.limit_field,
            )
        self._known(sampling.logit_bias, "logit_bias")
        self._known(sampling.stop_token_ids, "stop_token_ids")
        self._known(sampling.allowed_tokens, "allowed_token_ids")
        filled = self.defaults.filled(sampling, size)
        if wished is None:
            default_tokens = self.defaults.max_new_tokens or sampling.default_tokens
            wished = min(most - size, default_tokens or most)
        return msgspec.structs.replace(filled, max_tokens=wished)

    def _check_template(self) -> None:
        """Raises `UnknownTokenError` if a plain conversation has tokens that the model lacks."""
        text = self._template.greeting()
        if text is not None:
            tokens = self._encoded(text, special=False)
            refuse_needed(self.tokenizer, tokens, self._vocabulary, "its chat template needs it")

    def tokens_within_answers(self, *, calls: bool) -> tuple[list[int], list[int]]:
        """Returns the added tokens that may occur anywhere in a text. The first list has the
        visible ones, such as `<think>` or a model's `<unit>`, the second the hidden ones.

        Excludes tokens that end an answer, and tokens that structure a conversation.

        Args:
            calls: True if the answer may call tools. Marks of calls and of their outputs then also
                count as structure.
        """
        added: Mapping[int, Any] = self.tokenizer.added_tokens_decoder
        structure = self._template.structure(calls=calls)
        names = ("bos", "eos", "pad", "unk", "cls", "sep", "mask")
        named = {getattr(self.tokenizer, f"{name}_token_id", None) for name in names}
        within = [
            token
            for token, added_token in sorted(added.items())
            if token not in self.defaults.ends
            and token not in named
            and not (calls and _TOOLS.search(added_token.content))
            and (added_token.content not in structure or _REASONING.search(added_token.content))
        ]
        visible = [token for token in within if token not in self.hidden]
        unseen = [
            token
            for token in within
            if token in self.hidden and not _ENDING.search(added[token].content)
        ]
        return visible, unseen

    def _known(self, tokens: Iterable[int], place: str) -> None:
        """Raises `InputError` for a token that the model does not have."""
        for token in tokens:
            if not 0 <= token < self._vocabulary:
                name = self.tokenizer.convert_ids_to_tokens(token) if token >= 0 else None
                description = f"the token '{name}' ({token})" if name else f"the token {token}"
                raise _refusal(
                    f"has {description}; the model's token ids are from 0 to "
                    f"{self._vocabulary - 1}.",
                    place,
                )

    def _encoded(self, text: str, *, special: bool) -> list[int]:
        return self.tokenizer(text, add_special_tokens=special)["input_ids"]

    def _shortened(self, prompt: Conversation, place: str, wished: int | None) -> Conversation:
        def of(messages: Messages) -> Conversation:
            return msgspec.structs.replace(prompt, messages=list(messages))

        def fits(messages: Messages, room: int) -> bool:
            _, tokens, _ = self._conversation(of(messages), place)
            return len(tokens) + room <= self._max_length

        least_room = 1 if wished is None else wished
        if may_fit(prompt.messages, self._max_length) and fits(prompt.messages, least_room):
            return prompt
        room = self._max_length // _ROOM if wished is None else wished
        return of(shortened(prompt.messages, lambda messages: fits(messages, room)))

    def _conversation(
        self, prompt: Conversation, place: str
    ) -> tuple[str, list[int], Features | None]:
        given: Sequence[Mapping[str, Any]] = prompt.messages
        if has_later_system(given) and not self._shows_later_system:
            given = without_later_system(given)
        if self._images:
            text, pictures = self._images.rendered(
                given, lambda messages: self._rendered(prompt, messages, place)
            )
            return text, *self._images.expanded(text, pictures, place)
        messages = [{**message, "content": self._content(message)} for message in given]
        text = self._rendered(prompt, messages, place)
        return text, self._encoded(text, special=False), None

    @cached_property
    def _shows_later_system(self) -> bool:
        return self._template.shows_later_system()

    def _content(self, message: Mapping[str, Any]) -> Any:
        content, role = message["content"], message["role"]
        if isinstance(content, str) or len(cast("list[Any]", content)) < 2:
            return as_text(content)
        return content if self._template.takes_parts(role) else as_text(content)

    def _rendered(
        self, prompt: Conversation, messages: Sequence[Mapping[str, Any]], place: str
    ) -> str:
        if not self._template.source:
            raise _refusal(
                "cannot be used: this model has no chat template. Use /v1/completions.", place
            )
        if prompt.continues:
            _check_continued(messages, place)
        try:
            return self._written(
                fitted(messages, self.dialect.habits),
                tools=(prompt.tools.offered() if prompt.tools else None) or None,
                documents=prompt.documents,
                begins_answer=prompt.begins_answer and not prompt.continues,
                continues=prompt.continues,
                **self._variables(prompt),
            )
        except jinja2.TemplateError as error:
            raise _refusal(f"cannot be rendered: {error}", place) from error
        except TemplateLimitError as error:
            raise InputError(
                f"'{place}' cannot be rendered: {error}. Use another template or shorter {place}.",
                field=place,
                of_item=False,
                code="template_failed",
            ) from error
        except TemplateDataError as error:
            if prompt.continues and "continue_final_message" in str(error):
                why = "cannot be continued: this model's chat template changes the last message."
                raise _refusal(why, place) from error
            raise _refusal(f"do not fit the model's chat template: {error}.", place) from error
        except (LookupError, TypeError, ValueError) as error:
            raise _refusal("do not fit the model's chat template.", place) from error

    def _variables(self, prompt: Conversation) -> dict[str, Any]:
        """Returns the variables that a request passes to the chat template, in addition to messages
        and tools.

        Raises `InputError` for a variable that the template does not read.
        """
        standard = {
            _EFFORT: (prompt.effort_field, prompt.effort),
            _VERBOSITY: (prompt.verbosity_field, prompt.verbosity),
        }
        variables = {name: value for name, (_, value) in standard.items() if value is not None}
        if prompt.verbosity == "medium" and not self._template.reads(_VERBOSITY):
            del variables[_VERBOSITY]
        fields = {name: standard[name][0] for name in variables}
        fields |= {name: f"{_VARIABLES_FIELD}.{name}" for name in prompt.variables}
        if prompt.documents:
            fields[_DOCUMENTS] = _DOCUMENTS
        for name, field in fields.items():
            if not self._template.reads(name):
                raise _refusal(
                    f"is not known to this model's chat template{self._hint(name)}.", field
                )
        hints = {name: value for name, value in prompt.hints.items() if self._template.reads(name)}
        return hints | variables | prompt.variables

    def _hint(self, name: str) -> str:
        """Returns a hint for a variable that the chat template does not read."""
        if name == _VERBOSITY:
            return ": leave it out, or send 'medium'"
        if name == _DOCUMENTS:
            return ": leave it out, and put the texts into a message"
        reads = [switch for switch in _SWITCHES if self._template.reads(switch)]
        if name in _SWITCHES and reads:
            return f", which reads '{reads[0]}' (see '{_VARIABLES_FIELD}')"
        return ": leave it out"

    def _written(self, messages: Sequence[Mapping[str, Any]], **further: Any) -> str:
        """Renders messages. Raises the errors of `ChatTemplate.rendered`."""
        messages = earlier_calls.named(messages, self._template.source)
        try:
            return self._template.rendered(messages, **further)
        except (jinja2.TemplateError, TemplateDataError):
            readable = earlier_calls.readable(messages)
            if readable is None:
                raise
        return self._template.rendered(readable, **further)

    def _unseen(self) -> Iterable[int]:
        """Yields special tokens, except those with a meaning for readers of the answer."""
        added: Mapping[int, Any] = self.tokenizer.added_tokens_decoder
        for token, added_token in added.items():
            is_mark = self.dialect.shows(added_token.content)
            if (
                added_token.special
                and not is_mark
                and not any(mark in added_token.content for mark in _MARKS)
            ):
                yield token


_EFFORT, _VERBOSITY, _DOCUMENTS = "reasoning_effort", "verbosity", "documents"
_VARIABLES_FIELD = "chat_template_kwargs"
_SWITCHES = ("enable_thinking", "thinking", _EFFORT)
"""Variables by which templates turn reasoning on or off or change its effort."""
_CUT_FIELD = "truncate_prompt_tokens"
_ROOM = 8
"""Divisor of the context. When turns are omitted, this part is reserved for an answer without a
limit.
"""
_THINK, _END_OF_THINKING = "<think>", "</think>"
_ENDING = re.compile("end|eo[mst]|stop", re.IGNORECASE)
"""Matches names of special tokens such as `<|endoftext|>`, which some models' files do not declare
as ends.
"""
_TOOLS = re.compile("tool", re.IGNORECASE)
_REASONING = re.compile("think", re.IGNORECASE)
_MARKS = ("tool_call", "TOOL_CALLS", "think", "THINK", "python_tag")


def _refusal(what: str, field: str) -> InputError:
    return InputError(f"'{field}' {what}", field=field, of_item=False)


def _check_continued(messages: Sequence[Mapping[str, Any]], place: str) -> None:
    """Raises `InputError` if the last message of a conversation has no text to continue."""
    last = messages[-1]
    if last.get("tool_calls") or not as_text(last["content"]):
        problem = "must end with a message that has text: 'continue_final_message' continues it."
        raise _refusal(problem, place)


def _continues_reasoning(prompt: Conversation) -> bool:
    """Returns True if a conversation ends inside reasoning that its last message has begun."""
    if not prompt.continues:
        return False
    text = as_text(prompt.messages[-1]["content"])
    return text.rfind(_THINK) > text.rfind(_END_OF_THINKING)
