"""The gateway's request to a replica for generated text. Imports little, because both sides import
it.
"""

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
"""Bounds of the repetition penalty. Logits are multiplied and divided by it and must not
overflow.
"""
MAX_SCORED = 1 << 17
"""Maximum number of prompt tokens per request with log probabilities."""
TOOLS_FIELD = "tools"


class Sampling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Options for sampling tokens. None means the value in the model's generation_config.json."""

    max_tokens: int | None = None
    """Maximum number of tokens in the answer. 0 means none."""
    default_tokens: int | None = None
    """Maximum number of tokens if neither `max_tokens` nor the model's files set one. None means
    the room that is left in the context.
    """
    min_tokens: int | None = None
    """Number of tokens before which the model cannot end its answer."""
    temperature: float | None = None
    """Sampling temperature. 0 means the most likely token."""
    top_p: float | None = None
    top_k: int | None = None
    """Number of most likely tokens to sample from. 0 means any."""
    min_p: float | None = None
    seed: int | None = None
    stop: list[str] = []
    include_stop: bool = False
    """If True, the text includes the stop string that ended it."""
    stop_token_ids: list[int] = []
    allowed_tokens: list[int] = []
    """Tokens that may be sampled. Empty means any."""
    skip_special: bool = True
    """If True, special tokens are left out of the text."""
    ignore_eos: bool = False
    """If True, generation continues after the model's end token. Used for measurements."""
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float | None = None
    logit_bias: dict[int, float] = {}
    """Maps a token to the number that is added to its logit."""
    logprobs: int | None = None
    """Number of alternatives to report next to each token's log probability. None means no
    report.
    """
    prompt_logprobs: int | None = None
    """Number of alternatives to report for each token of the prompt. None means no report."""

    def of(self, number: int) -> "Sampling":
        """Returns the sampling for one of several answers. The seed must not make them all
        equal.
        """
        if self.seed is None or number == 0:
            return self
        return msgspec.structs.replace(self, seed=self.seed + number)


class Guide(msgspec.Struct, frozen=True, kw_only=True):
    """Form of the answer's text, enforced during sampling."""

    kind: Literal["json_object", "json_schema", "regex", "choice", "grammar", "without"]
    field: str
    """Field of the request that sets the form, for errors."""
    value: Any = None
    """The schema, regular expression, texts to choose from or to avoid, or grammar."""
    strict: bool = False
    """For a JSON schema: objects accept only the members that it names."""


class Tools(msgspec.Struct, frozen=True, kw_only=True):
    """Functions that the model may call. If the request also sets a form, a call replaces it."""

    functions: list[dict[str, Any]]
    """Functions as the client sent them: `{"type": "function", "function": {"name", …}}`."""
    choice: Literal["auto", "none", "required"] = "auto"
    name: str | None = None
    """With `required`: the only function to call."""
    allowed: list[str] | None = None
    """Names of functions that may be called. None means all. The model is shown no others."""
    parallel: bool = True
    schema_field: str = "tools[{}].function.parameters"
    """Place of a function's schema in the request, for errors."""
    fields: list[str] = []
    """Places of all functions' schemas. Empty: `schema_field` names them."""
    forms: dict[str, dict[str, Any]] = {}
    """Maps a function's name to the schema that its arguments must match, if the model is shown a
    looser one. The request is rejected if the model's format of calls cannot enforce it.
    """

    def field(self, place: int) -> str:
        """Returns the place of a function's schema in the request."""
        return self.fields[place] if self.fields else self.schema_field.format(place)

    def offered(self) -> list[dict[str, Any]]:
        """Returns the functions that are shown to the model and may be called."""
        if self.choice == "none":
            return []
        return [function for function in self.functions if self.offers(function)]

    def offers(self, function: Mapping[str, Any]) -> bool:
        return self.allowed is None or function["function"]["name"] in self.allowed


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """Prompt that the model's chat template builds from messages."""

    messages: list[dict[str, Any]]
    """Messages in the form of templates. A content is a text or a list of `text_part`s. Contents of
    the user and of tools may also hold `image_part`s.
    """
    tools: Tools | None = None
    effort: str | None = None
    """The template's `reasoning_effort`, if it reads it."""
    effort_field: str = "reasoning_effort"
    """Field of the request that sets the effort, for errors."""
    verbosity: str | None = None
    """The template's `verbosity`, if it reads it. `medium` has no effect on others."""
    verbosity_field: str = "verbosity"
    variables: dict[str, Any] = {}
    """Further variables of the chat template. The template must read them."""
    hints: dict[str, Any] = {}
    """Variables for chat templates that read them. Other templates ignore them."""
    documents: list[dict[str, Any]] | None = None
    """Documents for the chat template. The template must read them."""
    begins_answer: bool = True
    """If True, the prompt ends with the beginning of the model's answer."""
    continues: bool = False
    """If True, the prompt ends with the text of the last message, and the answer continues it."""
    truncate: bool = False
    """If True, the oldest turns are left out if the prompt is too long."""

    def media(self) -> Iterator[tuple[str, Media]]:
        """Yields the images, each with its field in the request."""
        for message in self.messages:
            if isinstance(message["content"], list):
                parts = cast("list[dict[str, Any]]", message["content"])
                yield from ((part["field"], part["image"]) for part in parts if "image" in part)


def text_part(text: str) -> dict[str, Any]:
    """Returns a text part of a content in the form of templates."""
    return {"type": "text", "text": text}


def text_content(texts: Sequence[str]) -> str | list[dict[str, Any]]:
    """Returns a message's content: a list of parts only if it has several."""
    return "".join(texts) if len(texts) < 2 else [text_part(text) for text in texts]


def as_text(content: str | Sequence[Mapping[str, Any]], image: str = "") -> str:
    """Returns a content as text, for chat templates that accept no parts: one line per part."""
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text", image) for part in content)


def image_part(source: str | Inline, field: str) -> dict[str, Any]:
    """
    Args:
        source: the image as the client sent it.
        field: its field in the request, for errors.
    """
    return {"type": "image", "image": Media("image", source=source), "field": field}


Prompt = str | list[int] | Conversation


class AdapterName(msgspec.Struct, frozen=True, kw_only=True):
    """Adapter that a call applies to its model."""

    folder: str
    """Name of the adapter's folder in `ReplicaSpec.adapters`."""
    deployment_id: str
    """Deployment of the adapter. The call is counted for it."""
    model: str


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """Truncation of a prompt before the model reads it."""

    tokens: int
    """Maximum number of tokens that are kept. -1 means as many as the model and the answer leave
    room for.
    """
    side: Literal["left", "right"] = "left"
    """Side on which tokens are removed."""


class TokenListing(msgspec.Struct, frozen=True, kw_only=True):
    """Form of an answer that lists the tokens of prompts, or returns the text of tokens."""

    is_tei: bool
    """True for the form of Text Embeddings Inference, which has several prompts. False for vLLM's
    form, which has a single prompt.
    """
    special: bool
    """True adds special tokens to a text, or keeps those of tokens."""
    with_strings: bool = False
    """True also returns the tokens as texts, in vLLM's form."""


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """Request for generated text: `n` answers to each of its prompts."""

    api: Literal[
        "chat",
        "completions",
        "responses",
        "input_tokens",
        "messages",
        "count_tokens",
        "tokenize",
        "detokenize",
    ]
    """API convention of the answer. `input_tokens` and `count_tokens` only count tokens. `tokenize`
    lists them, and `detokenize` returns their text.
    """
    prompts: list[Prompt]
    sampling: Sampling
    guide: Guide | None = None
    n: int = 1
    echo: bool = False
    """If True, the answers begin with their prompts, which must not be conversations."""
    stream: bool = False
    cut: Cut | None = None
    limit_field: str = "max_tokens"
    """Field of the request that limits the answer, for errors."""
    lowers_limit: bool = False
    """If True, a `max_tokens` beyond the room in the context is lowered instead of rejected."""
    answer: dict[str, Any] = {}
    """Data for the answer's writer: ids of the answer and the model, and the convention's own
    options.
    """
    adapter: AdapterName | None = None
    """Adapter to apply to the model."""
    listing: "TokenListing | None" = None
    """With the APIs `tokenize` and `detokenize`: form of the answer."""

    @property
    def only_counts(self) -> bool:
        """True if the prompt's tokens are counted or listed and no answer is generated."""
        return self.api in ("input_tokens", "count_tokens") or self.listing is not None

    def media(self) -> Iterator[tuple[str, Media]]:
        """Yields the images of the prompts, each with its field in the request."""
        for prompt in self.prompts:
            if isinstance(prompt, Conversation):
                yield from prompt.media()

    @property
    def tools(self) -> Tools | None:
        first = self.prompts[0]
        return first.tools if isinstance(first, Conversation) else None

    @property
    def form_field(self) -> str:
        """Field of the request that sets a form of the answer."""
        return self.guide.field if self.guide else TOOLS_FIELD

    def place(self, index: int) -> str:
        """Returns the field of the request that holds a prompt."""
        if self.api in ("chat", "messages", "count_tokens"):
            return "messages"
        if self.api in ("responses", "input_tokens"):
            return "input"
        if self.listing:
            return self._listed_place(index, self.listing)
        return "prompt" if len(self.prompts) == 1 else f"prompt[{index}]"

    def _listed_place(self, index: int, listing: TokenListing) -> str:
        is_text = self.api == "tokenize"
        if not listing.is_tei:
            talks = isinstance(self.prompts[index], Conversation)
            return "messages" if talks else "prompt" if is_text else "tokens"
        field = "inputs" if is_text else "ids"
        return field if len(self.prompts) == 1 else f"{field}[{index}]"
