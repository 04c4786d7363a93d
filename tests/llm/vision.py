"""Tiny vision models of every kind that is served, with random weights."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import processors

from tests.llm.support import VOCABULARY, tokenizer

library: Any = transformers

POSITIONS = 512
TEXT: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": POSITIONS,
    # Wide enough that answers depend on the whole prompt and no two tokens tie.
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
VISION: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 32,
    "patch_size": 8,
    "initializer_range": 0.3,
}
SQUARE = {"height": 32, "width": 32}
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% for part in message.content %}"
    "{% if part.type == 'image' %}IMAGE{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def _tokenizer(image: str, *special: str, **named: str) -> Any:
    made = tokenizer(TEMPLATE.replace("IMAGE", image), special=(*SPECIAL, *special), added=())
    made.pad_token = "<|endoftext|>"
    if named:
        made._set_model_specific_special_tokens(special_tokens=named)
    return made


def _save(folder: Path, model: Any, images: Any, words: Any, **options: Any) -> Path:
    """Saves a model as in the hub's repositories: a file each for the processor, the images and the
    words.
    """
    model.eval().save_pretrained(folder)
    images.save_pretrained(folder)
    words.save_pretrained(folder)
    (folder / "processor_config.json").write_text(json.dumps(options))
    return folder


def llava(folder: Path) -> Path:
    words = _tokenizer("<image>", "<image>")
    # Llama's tokenizer puts a first token before every text. The template has none.
    words.bos_token = "<|endoftext|>"
    words.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", words.bos_token_id)]
    )
    config = library.LlavaConfig(
        vision_config=library.CLIPVisionConfig(**VISION),
        text_config=library.LlamaConfig(**TEXT),
        image_token_id=words.convert_tokens_to_ids("<image>"),
        vision_feature_layer=-1,
    )
    model = library.LlavaForConditionalGeneration(config)
    images = library.CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size=SQUARE)
    options = {"patch_size": 8, "vision_feature_select_strategy": "default"}
    return _save(folder, model, images, words, num_additional_image_tokens=1, **options)


def llava_next(folder: Path) -> Path:
    """Saves a model that splits larger images into pieces: the whole image and the cells of a
    grid.
    """
    words = _tokenizer("<image>", "<image>")
    grids = [[32, 64], [64, 32], [64, 64]]
    config = library.LlavaNextConfig(
        vision_config=library.CLIPVisionConfig(**VISION),
        text_config=library.LlamaConfig(**TEXT),
        image_token_index=words.convert_tokens_to_ids("<image>"),
        vision_feature_layer=-1,
        image_grid_pinpoints=grids,
    )
    model = library.LlavaNextForConditionalGeneration(config)
    images = library.LlavaNextImageProcessorPil(
        size={"shortest_edge": 32}, crop_size=SQUARE, image_grid_pinpoints=grids
    )
    options = {"patch_size": 8, "vision_feature_select_strategy": "default"}
    return _save(folder, model, images, words, num_additional_image_tokens=1, **options)


def _idefics(folder: Path, config: Any, model: Any, images: Any) -> Path:
    places = [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
    frame = ("<fake_token_around_image>", "<image>", "<end_of_utterance>", "<global-img>")
    words = _tokenizer("<image>", *frame, *places[:2], *places[6:8])
    built_config = config(
        vision_config=VISION | {"image_size": 64},
        text_config=library.LlamaConfig(**TEXT),
        image_token_id=words.convert_tokens_to_ids("<image>"),
        scale_factor=4,
    )
    made = images(size={"longest_edge": 128}, max_image_size={"longest_edge": 64})
    return _save(folder, model(built_config), made, words, image_seq_len=4)


def idefics3(folder: Path) -> Path:
    return _idefics(
        folder,
        library.Idefics3Config,
        library.Idefics3ForConditionalGeneration,
        library.Idefics3ImageProcessorPil,
    )


def smolvlm(folder: Path) -> Path:
    return _idefics(
        folder,
        library.SmolVLMConfig,
        library.SmolVLMForConditionalGeneration,
        library.SmolVLMImageProcessorPil,
    )


def _qwen(folder: Path, config: Any, model: Any, **vision: Any) -> Path:
    image = "<|vision_start|><|image_pad|><|vision_end|>"
    words = _tokenizer(
        image, "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"
    )
    place = words.convert_tokens_to_ids
    rope = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [2, 3, 3]}
    built_config = config(
        text_config={**TEXT, "head_dim": 16, "rope_parameters": rope},
        tie_word_embeddings=False,
        vision_config={"depth": 2, "num_heads": 2, "patch_size": 4, **vision},
        image_token_id=place("<|image_pad|>"),
        video_token_id=place("<|video_pad|>"),
        vision_start_token_id=place("<|vision_start|>"),
        vision_end_token_id=place("<|vision_end|>"),
    )
    images = library.Qwen2VLImageProcessorPil(
        patch_size=4, size={"shortest_edge": 16 * 16, "longest_edge": 64 * 64}
    )
    return _save(folder, model(built_config), images, words)


def qwen2_vl(folder: Path) -> Path:
    vision = {"embed_dim": 32, "hidden_size": 64}
    return _qwen(folder, library.Qwen2VLConfig, library.Qwen2VLForConditionalGeneration, **vision)


def qwen2_5_vl(folder: Path) -> Path:
    vision = {"hidden_size": 32, "out_hidden_size": 64, "intermediate_size": 64}
    return _qwen(
        folder,
        library.Qwen2_5_VLConfig,
        library.Qwen2_5_VLForConditionalGeneration,
        window_size=16,
        fullatt_block_indexes=[1],
        **vision,
    )


def qwen3_vl(folder: Path) -> Path:
    """Saves a model that also adds features of its vision tower's lower layers to the text's lower
    layers.
    """
    vision = {"hidden_size": 32, "out_hidden_size": 64, "intermediate_size": 64}
    return _qwen(
        folder,
        library.Qwen3VLConfig,
        library.Qwen3VLForConditionalGeneration,
        deepstack_visual_indexes=[0],
        num_position_embeddings=64,
        **vision,
    )


def gemma3(folder: Path) -> Path:
    named = {
        "boi_token": "<start_of_image>",
        "eoi_token": "<end_of_image>",
        "image_token": "<image_soft_token>",
    }
    words = _tokenizer("<start_of_image>", *named.values(), **named)
    place = words.convert_tokens_to_ids
    text = library.Gemma3TextConfig(
        **TEXT,
        head_dim=16,
        # The sliding layer has a window that is shorter than the tests' prompts.
        sliding_window=24,
        layer_types=["sliding_attention", "full_attention"],
    )
    config = library.Gemma3Config(
        text_config=text,
        vision_config=library.SiglipVisionConfig(**VISION),
        mm_tokens_per_image=4,
        tie_word_embeddings=False,
        boi_token_index=place("<start_of_image>"),
        eoi_token_index=place("<end_of_image>"),
        image_token_index=place("<image_soft_token>"),
    )
    model = library.Gemma3ForConditionalGeneration(config)
    # The weights are zeros by default.
    torch.nn.init.normal_(model.model.multi_modal_projector.mm_input_projection_weight)
    images = library.Gemma3ImageProcessorPil(size=SQUARE)
    return _save(folder, model, images, words, image_seq_length=4)


KINDS: Mapping[str, Callable[[Path], Path]] = {
    "gemma3": gemma3,
    "idefics3": idefics3,
    "llava": llava,
    "llava_next": llava_next,
    "qwen2_5_vl": qwen2_5_vl,
    "qwen2_vl": qwen2_vl,
    "qwen3_vl": qwen3_vl,
    "smolvlm": smolvlm,
}


def kind(architecture: str) -> str:
    """Returns the name above for a model's class."""
    name = architecture.removesuffix("ForConditionalGeneration").lower()
    return next(kind for kind in KINDS if kind.replace("_", "") == name.replace("_", ""))


def generated(model: Any, features: Mapping[str, Any], count: int) -> list[int]:
    """Returns the greedy answer of transformers itself."""
    with torch.inference_mode():
        token_ids = model.generate(
            **features, max_new_tokens=count, do_sample=False, eos_token_id=None, pad_token_id=0
        )
    return token_ids[0, features["input_ids"].shape[1] :].tolist()


def messages(text: str, *images: Any) -> Sequence[dict[str, Any]]:
    """Returns a question about images, as chat templates expect it."""
    parts = [{"type": "image", "image": content} for content in images]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]
