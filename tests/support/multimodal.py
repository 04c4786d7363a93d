"""Tiny models for images and text, with random weights."""

from pathlib import Path
from typing import Any

import torch
import transformers

from tests.support.models import word_tokenizer

SIZE = 32
POSITIONS = 32
_SQUARE = {"height": SIZE, "width": SIZE}
SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
}
VISION: dict[str, Any] = {**SMALL, "image_size": SIZE, "patch_size": 8}


def vilt(folder: Path) -> None:
    tokenizer = word_tokenizer()
    config = transformers.ViltConfig(
        **VISION,
        vocab_size=len(tokenizer),
        max_position_embeddings=POSITIONS + 3,
        num_labels=9,
        initializer_range=0.3,
    )
    transformers.ViltForQuestionAnswering(config).save_pretrained(folder)
    transformers.ViltImageProcessorPil(
        size={"shortest_edge": SIZE}, size_divisor=8
    ).save_pretrained(folder)
    tokenizer.model_max_length = POSITIONS + 3
    tokenizer.save_pretrained(folder)


def blip(folder: Path, head: str) -> None:
    tokenizer = word_tokenizer()
    text = {
        **SMALL,
        "vocab_size": len(tokenizer),
        "max_position_embeddings": POSITIONS,
        "encoder_hidden_size": SMALL["hidden_size"],
        "initializer_range": 0.3,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.cls_token_id,
        "sep_token_id": tokenizer.sep_token_id,
        "eos_token_id": tokenizer.sep_token_id,
    }
    config = transformers.BlipConfig(
        text_config=text, vision_config={**VISION, "initializer_range": 0.3}
    )
    model = getattr(transformers, head)(config)
    _talk(model.text_decoder.cls.predictions.decoder, tokenizer)
    model.save_pretrained(folder)
    transformers.BlipImageProcessorPil(size=_SQUARE).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def git(folder: Path) -> None:
    tokenizer = word_tokenizer()
    config = transformers.GitConfig(
        **SMALL,
        vision_config={**VISION, "initializer_range": 0.3, "initializer_factor": 3.0},
        vocab_size=len(tokenizer),
        max_position_embeddings=POSITIONS,
        initializer_range=0.3,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.cls_token_id,
        eos_token_id=tokenizer.sep_token_id,
    )
    model = transformers.GitForCausalLM(config)
    _talk(model.output, tokenizer)
    model.save_pretrained(folder)
    transformers.CLIPImageProcessorPil(
        size={"shortest_edge": SIZE}, crop_size=_SQUARE
    ).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def vit_gpt2(folder: Path) -> None:
    tokenizer = word_tokenizer()
    encoder = transformers.ViTConfig(**VISION, initializer_range=0.3)
    decoder = transformers.GPT2Config(
        n_embd=32,
        n_layer=1,
        n_head=2,
        n_positions=POSITIONS,
        vocab_size=len(tokenizer),
        initializer_range=0.3,
        add_cross_attention=True,
        is_decoder=True,
        bos_token_id=tokenizer.cls_token_id,
        eos_token_id=tokenizer.sep_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    config = transformers.VisionEncoderDecoderConfig(
        encoder=encoder.to_dict(),
        decoder=decoder.to_dict(),
        decoder_start_token_id=tokenizer.cls_token_id,
        eos_token_id=tokenizer.sep_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=False,
    )
    model = transformers.VisionEncoderDecoderModel(config)
    _often(model, tokenizer.sep_token_id)
    model.save_pretrained(folder)
    transformers.ViTImageProcessorPil(size=_SQUARE).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def donut(folder: Path) -> None:
    tokenizer = word_tokenizer()
    names = ["<s_docvqa>", "<s_question>", "</s_question>", "<s_answer>", "</s_answer>"]
    tokenizer.add_special_tokens({"additional_special_tokens": names, "eos_token": "[SEP]"})
    encoder = transformers.DonutSwinConfig(
        image_size=[SIZE, SIZE],
        patch_size=4,
        embed_dim=16,
        depths=[1, 1],
        num_heads=[2, 2],
        window_size=4,
        initializer_range=0.3,
    )
    decoder = transformers.MBartConfig(
        d_model=32,
        decoder_layers=1,
        decoder_attention_heads=2,
        decoder_ffn_dim=64,
        vocab_size=len(tokenizer),
        max_position_embeddings=POSITIONS,
        init_std=0.3,
        is_decoder=True,
        is_encoder_decoder=False,
        add_cross_attention=True,
        bos_token_id=tokenizer.cls_token_id,
        eos_token_id=tokenizer.sep_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    config = transformers.VisionEncoderDecoderConfig(
        encoder=encoder.to_dict(),
        decoder=decoder.to_dict(),
        decoder_start_token_id=tokenizer.cls_token_id,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.sep_token_id,
        tie_word_embeddings=False,
    )
    model = transformers.VisionEncoderDecoderModel(config)
    _often(model, tokenizer.convert_tokens_to_ids("</s_answer>"))
    _often(model, tokenizer.sep_token_id)
    model.save_pretrained(folder)
    transformers.DonutImageProcessorPil(size=_SQUARE).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def layoutlm(folder: Path) -> None:
    tokenizer = word_tokenizer()
    config = transformers.LayoutLMConfig(
        **SMALL,
        vocab_size=len(tokenizer),
        max_position_embeddings=POSITIONS + 3,
        max_2d_position_embeddings=1024,
        initializer_range=0.3,
    )
    transformers.LayoutLMForQuestionAnswering(config).save_pretrained(folder)
    tokenizer.model_max_length = POSITIONS + 3
    tokenizer.save_pretrained(folder)


def _often(model: Any, token: int) -> None:
    """Makes a token likely at some positions and unlikely at others."""
    with torch.no_grad():
        model.decoder.lm_head.weight[token] *= 3


def _talk(output: torch.nn.Linear, tokenizer: Any) -> None:
    """Makes the end token likely enough that generated texts have different lengths."""
    with torch.no_grad():
        output.bias[tokenizer.sep_token_id] += 2.0
