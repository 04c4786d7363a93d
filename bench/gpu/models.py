"""Models of the GPU benchmark. They are built on the spot with random weights."""

from collections.abc import Mapping
from pathlib import Path

from bench.chat_models import chat_llama
from bench.gpu.sizes import Sizes
from bench.models import kept, photo_classifier, tagger, tokenizer


def bert(sizes: Sizes) -> Path:
    return tagger(_name("bert-base-fitted", sizes), **sizes.bert)


def vit(sizes: Sizes) -> Path:
    return photo_classifier(_name("vit-base-fitted", sizes), **sizes.vit)


def llama(sizes: Sizes) -> Path:
    """Returns a Llama that computes as many products per token as one of 135 M parameters.

    Its output layer has weights of its own, so that its answers vary and can be compared.
    """
    return chat_llama(
        _name("varied-llama-135m", sizes),
        is_tied=False,
        attention_gain=sizes.attention_gain,
        **sizes.llama,
    )


def minilm(sizes: Sizes) -> Path:
    """Returns an encoder of MiniLM's size. Its texts have the same length limit as the real one."""

    def save(folder: Path) -> None:
        import transformers

        config = transformers.BertConfig(**_fields(sizes.minilm))
        transformers.BertModel(config).eval().save_pretrained(folder)
        tokenizer(512).save_pretrained(folder)

    return kept(_name("random-minilm", sizes), save)


def _name(name: str, sizes: Sizes) -> str:
    return f"tiny-{name}" if sizes.is_tiny else name


def _fields(sizes: Mapping[str, int]) -> dict[str, int]:
    return dict(sizes)
