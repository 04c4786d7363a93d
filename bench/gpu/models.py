"""Models of the GPU benchmark. They are built on the spot with random weights."""

from collections.abc import Mapping
from pathlib import Path

from bench.chat_models import chat_llama
from bench.gpu.sizes import Sizes
from bench.models import kept, photo_classifier, tagger, tokenizer

_LAYER = "layer.0."
"""Part of the names of the first layer's weights."""


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


def large_encoder(sizes: Sizes) -> Path:
    """Returns an encoder with about `held_bytes` of weights in float32.

    Its layers have the same random weights, so that it is built in seconds.
    """

    def save(folder: Path) -> None:
        import transformers
        from safetensors.torch import save_file

        config = transformers.BertConfig(
            **_fields(sizes.large_layer), num_hidden_layers=1, architectures=["BertModel"]
        )
        weights = transformers.BertModel(config).eval().state_dict()
        layer = {name: value for name, value in weights.items() if _LAYER in name}
        layer_bytes = sum(value.nbytes for value in layer.values())
        config.num_hidden_layers = max(1, sizes.held_bytes // layer_bytes)
        for number in range(1, config.num_hidden_layers):
            other = f"layer.{number}."
            weights |= {name.replace(_LAYER, other): value.clone() for name, value in layer.items()}
        folder.mkdir(parents=True, exist_ok=True)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        config.save_pretrained(folder)
        tokenizer(512).save_pretrained(folder)

    return kept(_name("random-large-encoder", sizes), save)


def _name(name: str, sizes: Sizes) -> str:
    return f"tiny-{name}" if sizes.is_tiny else name


def _fields(sizes: Mapping[str, int]) -> dict[str, int]:
    return dict(sizes)
