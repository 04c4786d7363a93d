"""A tiny chat model with random weights, and a parser of its events on the wire."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TEXT = (
    "hello world, the quick brown fox jumps over lazy dogs and cats in Berlin, Paris and Rome; "
    "what is the weather in the city? name arguments location true false null 0123456789"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>"]
TEMPLATE = """\
{%- if tools %}<|im_start|>system
<tools>{% for tool in tools %}{{ tool | tojson }}
{% endfor %}</tools> Call one as <tool_call>{"name": …, "arguments": …}</tool_call>.<|im_end|>
{% endif %}
{%- if reasoning_effort %}<|im_start|>system
Effort: {{ reasoning_effort }}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{% if message.reasoning_content %}<think>
{{ message.reasoning_content }}
</think>

{% endif %}{{ message.content }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def chat_model(folder: Path) -> Path:
    """Saves a Llama of some thousand parameters that answers greedily, with a ChatML template."""
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([TEXT] * 10, trainer)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        initializer_range=0.3,
    )
    transformers.set_seed(0)
    model = transformers.LlamaForCausalLM(config).eval()
    model.save_pretrained(folder)
    config_path = folder / "generation_config.json"
    # The model may reason before a form or a call, and would never stop. So it rarely begins a mark
    # by itself.
    rarely = [[[tokenizer.convert_tokens_to_ids("<")], -50.0]]
    more = {"do_sample": False, "sequence_bias": rarely}
    config_path.write_text(json.dumps(json.loads(config_path.read_text()) | more))
    return folder


def generated(folder: Path, messages: Sequence[dict[str, Any]], tokens: int) -> tuple[str, int]:
    """Returns transformers' answer to a conversation, and the number of tokens in the prompt."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    prompt = tokenizer.apply_chat_template(
        list(messages), add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    size = prompt["input_ids"].shape[1]
    answer = model.generate(**prompt, max_new_tokens=tokens, do_sample=False)[0, size:]
    return tokenizer.decode(answer, skip_special_tokens=True), size


def events(content: bytes) -> list[dict[str, Any]]:
    """Checks the framing of a stream and returns its events."""
    parsed: list[dict[str, Any]] = []
    for number, block in enumerate(content.decode().removesuffix("\n\n").split("\n\n")):
        head, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert head == f"event: {event['type']}"
        assert event["sequence_number"] == number
        parsed.append(event)
    return parsed


def replayed(content: bytes) -> list[dict[str, Any]]:
    """Returns the events of a response in the background."""
    lines = [line for line in content.decode().split("\n") if line.startswith("data: ")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]
