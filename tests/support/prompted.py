"""Tiny models that take an image and a text: BLIP-2 and Florence-2, with random weights."""

from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import decoders

from tests.support.language import tokenizer
from tests.support.multimodal import SMALL

SIZE = 64
POSITIONS = 64
QUERIES = 4
_SQUARE = {"height": SIZE, "width": SIZE}
_VISION = {**SMALL, "image_size": SIZE, "patch_size": 16, "initializer_range": 0.3}


def blip2_opt(folder: Path) -> None:
    """Saves a BLIP-2 with a language model that continues the image and the text."""
    words = tokenizer("roberta")
    words.add_special_tokens({"additional_special_tokens": ["<image>"]})
    text = transformers.OPTConfig(
        vocab_size=len(words),
        hidden_size=32,
        word_embed_proj_dim=32,
        ffn_dim=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=POSITIONS,
        init_std=0.3,
        pad_token_id=words.pad_token_id,
        bos_token_id=words.bos_token_id,
        eos_token_id=words.eos_token_id,
    )
    _blip2(folder, words, text)


def blip2_t5(folder: Path) -> None:
    """Saves a BLIP-2 with a language model that reads the image and the text and writes another
    text.
    """
    words = tokenizer("t5")
    words.add_special_tokens({"additional_special_tokens": ["<image>"]})
    text = transformers.T5Config(
        vocab_size=len(words),
        d_model=32,
        d_kv=16,
        d_ff=64,
        num_layers=1,
        num_heads=2,
        pad_token_id=words.pad_token_id,
        bos_token_id=words.bos_token_id,
        eos_token_id=words.eos_token_id,
        decoder_start_token_id=words.pad_token_id,
        tie_word_embeddings=False,
        initializer_factor=1.5,
    )
    _blip2(folder, words, text)


def _blip2(folder: Path, words: Any, text: Any) -> None:
    config = transformers.Blip2Config(
        vision_config=_VISION,
        qformer_config={**SMALL, "initializer_range": 0.3},
        text_config=text,
        num_query_tokens=QUERIES,
        image_token_index=words.convert_tokens_to_ids("<image>"),
        initializer_range=0.3,
    )
    model = transformers.Blip2ForConditionalGeneration(config)
    with torch.no_grad():
        model.query_tokens.normal_()
        for weight in model.language_projection.parameters():
            weight.mul_(5)
        _end_now_and_then(model.language_model.lm_head, words.eos_token_id)
    model.save_pretrained(folder)
    transformers.BlipImageProcessorPil(size=_SQUARE).save_pretrained(folder)
    words.save_pretrained(folder)


def florence2(folder: Path) -> None:
    plain = tokenizer("roberta")
    places = [f"<loc_{number}>" for number in range(1000)]
    plain.add_tokens(places)
    # Joins tokens without spaces, as byte-level decoding does.
    plain.backend_tokenizer.decoder = decoders.Fuse()
    marks = ("bos_token", "eos_token", "pad_token", "unk_token")
    words = transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain.backend_tokenizer,
        extra_special_tokens={"image_token": "<image>"},
        model_input_names=["input_ids", "attention_mask"],
        **{mark: getattr(plain, mark) for mark in marks},
    )
    text = transformers.BartConfig(
        vocab_size=len(words),
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_position_embeddings=POSITIONS,
        init_std=0.3,
        pad_token_id=words.pad_token_id,
        bos_token_id=words.bos_token_id,
        eos_token_id=words.eos_token_id,
        decoder_start_token_id=words.eos_token_id,
        forced_bos_token_id=words.bos_token_id,
    )
    vision = {
        "depths": [1, 1, 1, 1],
        "embed_dim": [8, 16, 32, 64],
        "num_heads": [1, 1, 2, 2],
        "num_groups": [1, 1, 2, 2],
        "window_size": 2,
        "projection_dim": 32,
        "initializer_range": 0.3,
    }
    config = transformers.Florence2Config(
        text_config=text.to_dict(),
        vision_config=vision,
        image_token_id=words.convert_tokens_to_ids("<image>"),
    )
    model = transformers.Florence2ForConditionalGeneration(config)
    with torch.no_grad():
        # A thousand location tokens compete with a hundred words. Some texts have several locations
        # in a row.
        model.lm_head.weight[-len(places) - 1 : -40] *= 0.2
        model.lm_head.weight[-40:-1] *= 1.6
        _end_now_and_then(model.lm_head, words.eos_token_id)
    model.generation_config.num_beams = 3
    model.save_pretrained(folder)
    images: Any = transformers.CLIPImageProcessorPil(
        size=_SQUARE, do_center_crop=False, image_seq_length=5
    )
    readings = [
        "ocr",
        "phrase_grounding",
        "pure_text",
        "description_with_bboxes",
        "description_with_polygons",
        "polygons",
        "bboxes",
        "description_with_bboxes_or_polygons",
    ]
    transformers.Florence2Processor(
        images, words, post_processor_config={name: {} for name in readings}
    ).save_pretrained(folder)


def _end_now_and_then(output: torch.nn.Linear, token: int) -> None:
    """Makes the end token likely at some positions and unlikely at others."""
    output.weight[token] *= 2.5
