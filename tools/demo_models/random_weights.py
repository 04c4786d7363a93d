"""The `random-…` models: the architecture of a task with untrained weights.

They prove only that a task's answers have the correct shape and, except for masks and tables, equal
those of transformers.
"""

import string
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import transformers
from transformers import BertTokenizer

from tools.demo_models import common, random_speech

SIZE = 32
_SQUARE = {"height": SIZE, "width": SIZE}
_TOWER: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
_VISION: dict[str, Any] = {**_TOWER, "image_size": SIZE, "patch_size": 8}
_LETTERS = string.ascii_letters + string.digits + string.punctuation

Parts = tuple[Any, list[Any]]
"""A model and the preprocessors of its inputs."""


def letters(max_tokens: int, *, segments: bool = False) -> BertTokenizer:
    """Returns a tokenizer that spells words of Latin letters."""
    names = ["input_ids", "token_type_ids", "attention_mask"]
    pieces = [*common.SPECIAL_TOKENS, *_LETTERS, *(f"##{letter}" for letter in _LETTERS)]
    return BertTokenizer(
        vocab={piece: at for at, piece in enumerate(pieces)},
        do_lower_case=False,
        model_max_length=max_tokens,
        model_input_names=[name for name in names if segments or name != "token_type_ids"],
    )


def depth() -> Parts:
    """Returns a DPT."""
    tower: Any = _VISION | {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 4}
    config = transformers.DPTConfig(
        **tower,
        backbone_out_indices=[0, 1, 2, 3],
        neck_hidden_sizes=[8, 8, 16, 16],
        fusion_hidden_size=16,
    )
    model = transformers.DPTForDepthEstimation(config)
    return model, [transformers.DPTImageProcessorPil(size=_SQUARE)]


def masks() -> Parts:
    """Returns a SAM."""
    vision = {
        "hidden_size": 16,
        "output_channels": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": SIZE,
        "patch_size": 4,
        "window_size": 2,
        "global_attn_indexes": [1],
        "mlp_dim": 32,
        "num_pos_feats": 8,
    }
    prompts = {"hidden_size": 16, "image_size": SIZE, "patch_size": 4, "mask_input_channels": 4}
    decoder = {
        "hidden_size": 16,
        "mlp_dim": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "iou_head_hidden_dim": 16,
    }
    config = transformers.SamConfig(
        vision_config=vision, prompt_encoder_config=prompts, mask_decoder_config=decoder
    )
    processor = transformers.SamImageProcessorPil(
        size={"longest_edge": SIZE},
        pad_size=_SQUARE,
        mask_size={"longest_edge": 8},
        mask_pad_size={"height": 8, "width": 8},
    )
    return transformers.SamModel(config), [processor]


def table() -> Parts:
    """Returns a BART that reads a table as text, as TAPEX does."""
    tokenizer = letters(512)
    config = transformers.BartConfig(
        vocab_size=len(tokenizer),
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_position_embeddings=512,
        pad_token_id=common.PAD,
        bos_token_id=common.CLS,
        eos_token_id=common.SEP,
        decoder_start_token_id=common.SEP,
        forced_eos_token_id=common.SEP,
    )
    model = transformers.BartForConditionalGeneration(config)
    return model, [tokenizer]


def document() -> Parts:
    """Returns a LayoutLM."""
    tokenizer = letters(512, segments=True)
    # The page positions, four tables of 1,024 rows, are most of the weights.
    tower: Any = _TOWER | {"hidden_size": 8}
    config = transformers.LayoutLMConfig(
        **tower,
        vocab_size=len(tokenizer),
        max_position_embeddings=512,
        max_2d_position_embeddings=1024,
        pad_token_id=common.PAD,
    )
    return transformers.LayoutLMForQuestionAnswering(config), [tokenizer]


def sound() -> Parts:
    """Returns a CLAP."""
    tokenizer = letters(64)
    text = transformers.ClapTextConfig(
        **_TOWER,
        vocab_size=len(tokenizer),
        max_position_embeddings=66,
        pad_token_id=common.PAD,
        projection_dim=16,
    )
    audio = transformers.ClapAudioConfig(
        spec_size=64,
        patch_embeds_hidden_size=16,
        depths=[1, 1],
        num_attention_heads=[2, 2],
        num_hidden_layers=2,
        hidden_size=32,
        projection_dim=16,
    )
    config = transformers.ClapConfig(
        text_config=text.to_dict(), audio_config=audio.to_dict(), projection_dim=16
    )
    extractor = transformers.ClapFeatureExtractor(
        sampling_rate=8000,
        hop_length=160,
        max_length_s=1,
        fft_window_size=512,
        frequency_max=4000,
        truncation="rand_trunc",
    )
    return transformers.ClapModel(config), [extractor, tokenizer]


def detection() -> Parts:
    """Returns an OWL-ViT."""
    pieces = [*_LETTERS, *(f"{letter}</w>" for letter in _LETTERS)]
    vocabulary = {piece: at for at, piece in enumerate(pieces)}
    for special in ("<|startoftext|>", "<|endoftext|>"):
        vocabulary[special] = len(vocabulary)
    tokenizer = transformers.CLIPTokenizer(vocabulary, [], model_max_length=32)
    text = {
        **_TOWER,
        "vocab_size": len(tokenizer),
        "max_position_embeddings": 32,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    config = transformers.OwlViTConfig(text_config=text, vision_config=_VISION, projection_dim=32)
    processor = transformers.OwlViTImageProcessorPil(size=_SQUARE, crop_size=_SQUARE)
    return transformers.OwlViTForObjectDetection(config), [processor, tokenizer]


MODELS: dict[str, tuple[str, Callable[[], Parts]]] = {
    "random-depth": ("depth-estimation", depth),
    "random-masks": ("mask-generation", masks),
    "random-table-qa": ("table-question-answering", table),
    "random-document-qa": ("document-question-answering", document),
    "random-audio-zero-shot": ("zero-shot-audio-classification", sound),
    "random-detection-zero-shot": ("zero-shot-object-detection", detection),
    "random-speech": ("text-to-speech", random_speech.vits),
}
"""Maps a model's name to its pipeline and builder."""


def build(name: str, folder: Path) -> None:
    """Writes a model with random weights and a card that says so."""
    common.seed_everything()
    pipeline, make = MODELS[name]
    model, preprocessors = make()
    for preprocessor in preprocessors:
        common.save(model, preprocessor, folder)
    common.write_card(folder, model, _card(name, pipeline, model))


BUILDS: dict[str, Callable[[Path], None]] = {name: partial(build, name) for name in MODELS}


def _card(name: str, pipeline: str, model: Any) -> common.Card:
    # Tests check only the shape of masks and tables.
    alike = pipeline not in ("mask-generation", "table-question-answering")
    compared = ", equal to those of transformers" if alike else ""
    return common.Card(
        title=f"{name}: random weights",
        pipeline_tag=pipeline,
        tags=(str(model.config.model_type), "random-weights", "tiny"),
        language="",
        summary=(
            f"The weights of this model are random: it was never trained, and its answers mean "
            f"nothing. It is a `{type(model).__name__}` of a very small size, there to prove that "
            f"{pipeline} gives answers of the right shape{compared}."
        ),
        data="None.",
        source="The weights were drawn by `{build}`; no third party's data was used.",
        evaluation=(),
        example=(
            f"from transformers import {type(model).__name__}\n\n"
            f'model = {type(model).__name__}.from_pretrained("{name}")'
        ),
        limits="It can do nothing. Do not use it for anything but tests of a server.",
        bounds="never trained",
        repeatable="They are drawn from the seed.",
    )
