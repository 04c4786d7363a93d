"""Converts dialogues of `tiny-chat` to tokens: the chat template, its parser and the tokenizer."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

MAX_TOKENS = 1024
END_OF_TEXT, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
MARKS = (
    *("<tools>", "</tools>"),
    *("<tool_call>", "</tool_call>"),
    *("<tool_response>", "</tool_response>"),
)
"""Separate tokens that a decoder must not skip, as in Qwen2.5's vocabulary."""

TEMPLATE = r"""
{%- macro text(content) -%}
    {%- if content is string -%}
        {{- content }}
    {%- elif content -%}
        {%- for part in content if part.type == 'text' -%}
            {{- part.text }}
        {%- endfor -%}
    {%- endif -%}
{%- endmacro -%}
{%- set system = messages and messages[0].role in ('system', 'developer') -%}
{%- if tools -%}
    {{- '<|im_start|>system\n' }}
    {%- if system -%}
        {{- text(messages[0].content) + '\n\n' }}
    {%- endif -%}
    {{- '# Tools\n\nYou may call these functions:\n<tools>' }}
    {%- for tool in tools -%}
        {{- '\n' + (tool | tojson) }}
    {%- endfor -%}
    {{- '\n</tools>\n\nCall them so:\n' }}
    {{- '<tool_call>\n{"name": <name>, "arguments": <object>}\n</tool_call>' }}
    {{- '<|im_end|>\n' }}
{%- elif system -%}
    {{- '<|im_start|>system\n' + text(messages[0].content) + '<|im_end|>\n' }}
{%- endif -%}
{%- for message in messages -%}
    {%- if message.role == 'tool' -%}
        {%- if loop.first or loop.previtem.role != 'tool' -%}
            {{- '<|im_start|>user' }}
        {%- endif -%}
        {{- '\n<tool_response>\n' + text(message.content) + '\n</tool_response>' }}
        {%- if loop.last or loop.nextitem.role != 'tool' -%}
            {{- '<|im_end|>\n' }}
        {%- endif -%}
    {%- elif message.role == 'assistant' and message.tool_calls -%}
        {{- '<|im_start|>assistant' }}
        {%- set said = text(message.content) -%}
        {%- if said -%}
            {{- '\n' + said }}
        {%- endif -%}
        {%- for call in message.tool_calls -%}
            {%- set call = call.function or call -%}
            {{- '\n<tool_call>\n{"name": "' + call.name + '", "arguments": ' }}
            {%- if call.arguments is string -%}
                {{- call.arguments }}
            {%- else -%}
                {{- call.arguments | tojson }}
            {%- endif -%}
            {{- '}\n</tool_call>' }}
        {%- endfor -%}
        {{- '<|im_end|>\n' }}
    {%- elif not (loop.first and system) -%}
        {%- set role = 'system' if message.role == 'developer' else message.role -%}
        {{- '<|im_start|>' + role + '\n' + text(message.content) + '<|im_end|>\n' }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|im_start|>assistant\n' }}
{%- endif -%}
""".lstrip()
"""ChatML with tools in the format of Hermes and Qwen2.5, but with shorter instructions to the
model.

A message's content is a string or a list of text parts. A call's arguments are an object or, as in
OpenAI's messages, its JSON.
"""

RESPONSE: dict[str, Any] = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "tool_calls": {
            # The newline between two calls must not count as separate content.
            "open_pattern": r"\s*<tool_call>",
            "close": "</tool_call>",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {
            "close_pattern": r"\s*(?:<\|im_end\|>|<\|endoftext\|>)",
            "content": "text",
        },
    },
}
"""Schema by which transformers' `parse_response` parses an answer."""

_PIECES = "|".join(
    (
        r"\p{N}",
        # Excludes the preceding space, so that a name has the same tokens in a sentence and in a
        # call's JSON.
        r"\p{Lu}[\p{L}\p{M}]*",
        r" ?[\p{Ll}\p{Lt}\p{Lm}\p{Lo}][\p{L}\p{M}]*",
        r"[\r\n]+",
        # A call has many runs such as `": {"`, which should be one token.
        r" ?[^\s\p{L}\p{N}]+(?: [^\s\p{L}\p{N}]+)*",
        r"\s+(?!\S)",
        r"\s",
    )
)
"""Pattern for digits, words, marks and spaces."""


def rendered(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    *,
    prompt: bool = False,
) -> str:
    """Renders messages in the chat template. A prompt ends at the start of the assistant's
    answer.
    """
    library: Any = chat_template_utils
    texts, _ = library.render_jinja_template(
        conversations=[messages],
        tools=list(tools) or None,
        chat_template=TEMPLATE,
        add_generation_prompt=prompt,
    )
    return texts[0]


def tokenizer(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Returns a byte-level BPE tokenizer that is learnt from the texts. Unknown text is encoded as
    bytes.
    """
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(MARKS),
        min_frequency=20,
        special_tokens=[END_OF_TEXT, START, END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    raw.train_from_iterator(texts, trainer)
    marks = [AddedToken(mark, normalized=False) for mark in MARKS]
    raw.add_tokens(marks)  # pyright: ignore[reportUnknownMemberType]
    return PreTrainedTokenizerFast(
        tokenizer_object=raw,
        pad_token=END_OF_TEXT,
        eos_token=END,
        additional_special_tokens=[START],
        model_max_length=MAX_TOKENS,
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
        chat_template=TEMPLATE,
        response_template=RESPONSE,
    )
