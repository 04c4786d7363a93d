"""Extent of the GPU benchmark: full on a GPU, tiny without one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bench.chat_models import LLAMA_135M

BERT_TINY = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
MINILM = {
    "hidden_size": 384,
    "intermediate_size": 1536,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
}
LARGE_LAYER = {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16}
LLAMA_TINY = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes of models and loads. The defaults are the full ones."""

    is_tiny: bool = False
    """True if the figures are meaningless, so that targets are not judged."""
    bert: Mapping[str, int] = field(default_factory=dict[str, int])
    minilm: Mapping[str, int] = field(default_factory=lambda: MINILM)
    vit: Mapping[str, int] = field(default_factory=dict[str, int])
    llama: Mapping[str, int] = field(default_factory=lambda: LLAMA_135M)
    attention_gain: float = 0.3
    """See `chat_llama`. The answers then depend on the last token and on the whole prompt."""
    demo_models: Sequence[str] = ()
    """Demo models that are called. Empty means all."""
    texts: int = 512
    photos: int = 48
    batch: int = 32
    """Batch size of the bare loops over texts and images."""
    load_s: float = 4.0
    warm_up_s: float = 4.0
    """Seconds of load before the first measurement: a model captures its graphs meanwhile."""
    text_clients: tuple[int, int] = (1, 64)
    embedding_clients: tuple[int, int] = (64, 256)
    image_clients: int = 64
    streams: tuple[int, int, int] = (1, 16, 64)
    chats_per_stream: int = 3
    prompt_tokens: int = 142
    answer_tokens: int = 64
    starts: int = 9
    replicas: int = 30
    held_bytes: int = 3 << 30
    """Device memory of the process that is checkpointed and restored, and of the sleeping model's
    weights.
    """
    large_layer: Mapping[str, int] = field(default_factory=lambda: LARGE_LAYER)
    """A layer of the sleeping model."""


FULL = Sizes()
TINY = Sizes(
    is_tiny=True,
    bert=BERT_TINY,
    minilm=BERT_TINY,
    vit=BERT_TINY,
    llama=LLAMA_TINY,
    attention_gain=2.0,
    demo_models=("tiny-ner", "tiny-sentiment", "tiny-chat"),
    texts=24,
    photos=6,
    batch=8,
    load_s=0.4,
    warm_up_s=3.0,
    text_clients=(1, 4),
    embedding_clients=(2, 4),
    image_clients=4,
    streams=(1, 2, 4),
    chats_per_stream=1,
    prompt_tokens=32,
    answer_tokens=8,
    starts=2,
    replicas=2,
    held_bytes=1 << 20,
)
