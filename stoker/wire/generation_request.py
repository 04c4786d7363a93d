"""What the gateway asks a replica to generate. Light: both sides import it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, cast

import msgspec

from stoker.media.inline import Inline
from stoker.media.media import Media

MAX_STOPS = 16
MAX_CHOICES = 128
MAX_LOGPROBS = 20
MAX_LOGIT_BIAS = 1024
MAX_ALLOWED_TOKENS = 1 << 17
MAX_TEMPLATE_VARIABLES = 64
MIN_PENALTY, MAX_PENALTY = 0.01, 100.0
"""Of repetition: logits are multiplied and divided by it, and must not overflow."""
MAX_SCORED = 1 << 17
"""Most tokens of prompts whose log probabilities one request may ask for."""
TOOLS_FIELD = "tools"


class Sampling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How tokens are drawn. None: what the model's generation_config.json says."""

    max_tokens: int | None = None
    """Most tokens of the answer. 0: none at all."""
    default_tokens: int | None = None
    """The same if neither `max_tokens` nor the model's files say; None: what the context has room
    for."""
    min_tokens: int | None = None
    """The model cannot end its answer before it has so many."""
    temperature: float | None = None
    """0: the likeliest token."""
    top_p: float | None = None
    top_k: int | None = None
    """0: any."""
    min_p: float | None = None
    seed: int | None = None
    stop: list[str] = []
    include_stop: bool = False
    """The text ends with the stop string that ended it."""
    stop_token_ids: list[int] = []
    allowed_tokens: list[int] = []
    """The only tokens that may be drawn; empty: any."""
    skip_special: bool = True
    """Special tokens that the model writes are left out of the text."""
    ignore_eos: bool = False
    """Go on after the model's own end; for measuring."""
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float | None = None
    logit_bias: dict[int, float] = {}
    """Token → added to its logit."""
    logprobs: int | None = None
    """How many alternatives to report beside each token's own log probability; None: nothing."""
    prompt_logprobs: int | None = None
    """The same of the prompt's tokens."""

    def of(self, number: int) -> "Sampling":
        """The sampling of one of several answers: a seed must not make them all alike."""
        if self.seed is None or number == 0:
            return self
        return msgspec.structs.replace(self, seed=self.seed + number)


class Guide(msgspec.Struct, frozen=True, kw_only=True):
    """What the text of the answer has to be, enforced while it is drawn."""

    kind: Literal["json_object", "json_schema", "regex", "choice", "grammar", "without"]
    field: str
    """The request's field that asks for it, for errors."""
    value: Any = None
    """The schema, the regular expression, the texts to choose from or to avoid, the grammar."""
    strict: bool = False
    """Of a JSON schema: objects take no members but those that it names."""


class Tools(msgspec.Struct, frozen=True, kw_only=True):
    """Functions that the model may call: where there is a form too, instead of it."""

    functions: list[dict[str, Any]]
    """As the client gave them: `{"type": "function", "function": {"name", …}}`."""
    choice: Literal["auto", "none", "required"] = "auto"
    name: str | None = None
    """With `required`: the one function to call."""
    allowed: list[str] | None = None
    """The functions that may be called; None: all of them. The model is shown no others."""
    parallel: bool = True
    schema_field: str = "tools[{}].function.parameters"
    """Where a function's schema stands in the request, for errors."""

    def offered(self) -> list[dict[str, Any]]:
        """The functions that the model is shown, and may call."""
        if self.choice == "none":
            return []
        return [one for one in self.functions if self.offers(one)]

    def offers(self, function: Mapping[str, Any]) -> bool:
        return self.allowed is None or function["function"]["name"] in self.allowed


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt that the model's chat template makes of messages."""

    messages: list[dict[str, Any]]
    """As templates take them. A content is a text or a list of `text_part`s; a user's may also hold
    `image_part`s."""
    tools: Tools | None = None
    effort: str | None = None
    """The template's `reasoning_effort`, where it knows it."""
    effort_field: str = "reasoning_effort"
    """Where that stands in the request, for errors."""
    verbosity: str | None = None
    """The template's `verbosity`, where it knows it; `medium` means nothing to others."""
    verbosity_field: str = "verbosity"
    variables: dict[str, Any] = {}
    """Further variables of the chat template, which has to read them."""
    documents: list[dict[str, Any]] | None = None
    """Documents for the chat template, which has to read them."""
    begins_answer: bool = True
    """The prompt ends with what begins an answer of the model."""
    continues: bool = False
    """The prompt ends with the text of the last message, which the answer continues."""
    truncate: bool = False
    """Leave out its oldest turns where it is too long."""

    def media(self) -> Iterator[tuple[str, Media]]:
        """The images, each with the request's field that it stands in."""
        for message in self.messages:
            if isinstance(message["content"], list):
                parts = cast("list[dict[str, Any]]", message["content"])
                yield from ((one["field"], one["image"]) for one in parts if "image" in one)


def text_part(text: str) -> dict[str, Any]:
    """Returns a part of a content, as templates take it."""
    return {"type": "text", "text": text}


def text_content(texts: Sequence[str]) -> str | list[dict[str, Any]]:
    """Returns a message's content: parts only if there are several."""
    return "".join(texts) if len(texts) < 2 else [text_part(text) for text in texts]


def as_text(content: str | Sequence[Mapping[str, Any]], image: str = "") -> str:
    """Returns a content for chat templates that take no parts: one line a part."""
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text", image) for part in content)


def image_part(source: str | Inline, field: str) -> dict[str, Any]:
    """
    Args:
        source: what the client wrote.
        field: where it stands in the request, for errors.
    """
    return {"type": "image", "image": Media("image", source=source), "field": field}


Prompt = str | list[int] | Conversation


class AdapterName(msgspec.Struct, frozen=True, kw_only=True):
    """What a call wants added to the model that it is for."""

    folder: str
    """Its name in `ReplicaSpec.adapters`."""
    deployment_id: str
    """Whose call it is: it is counted with that one's."""
    model: str


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """How a prompt is cut before the model reads it."""

    tokens: int
    """Most tokens that are kept; -1: as many as the model and the answer leave room for."""
    side: Literal["left", "right"] = "left"
    """Where tokens are cut off."""


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """One request for generated text: `n` answers to each of its prompts."""

    api: Literal["chat", "completions", "responses", "input_tokens"]
    """Which convention the answer follows. `input_tokens`: the prompt's are counted, no more."""
    prompts: list[Prompt]
    sampling: Sampling
    guide: Guide | None = None
    n: int = 1
    echo: bool = False
    """The answers begin with their prompts, which are no conversations."""
    stream: bool = False
    cut: Cut | None = None
    limit_field: str = "max_tokens"
    """The request's field that bounds the answer, for errors."""
    answer: dict[str, Any] = {}
    """What the answer's writer needs: its id, the model's, and the convention's own options."""
    adapter: AdapterName | None = None
    """What is to be added to the model for it."""

    def media(self) -> Iterator[tuple[str, Media]]:
        """The images of the prompts, each with the request's field that it stands in."""
        for prompt in self.prompts:
            if isinstance(prompt, Conversation):
                yield from prompt.media()

    @property
    def tools(self) -> Tools | None:
        first = self.prompts[0]
        return first.tools if isinstance(first, Conversation) else None

    @property
    def form_field(self) -> str:
        """The request's field that asks for a form of the answer."""
        return self.guide.field if self.guide else TOOLS_FIELD

    def place(self, index: int) -> str:
        """The request's field that a prompt stands in."""
        if self.api == "chat":
            return "messages"
        if self.api in ("responses", "input_tokens"):
            return "input"
        return "prompt" if len(self.prompts) == 1 else f"prompt[{index}]"
