"""The kinds of vision models that chat. Light: the gateway and replicas import it."""

from collections.abc import Mapping

IMAGE_TEXT_TO_TEXT = "image-text-to-text"
VISION: Mapping[str, str] = {
    "Gemma3ForConditionalGeneration": "Gemma3Processor",
    "Idefics3ForConditionalGeneration": "Idefics3Processor",
    "LlavaForConditionalGeneration": "LlavaProcessor",
    "LlavaNextForConditionalGeneration": "LlavaNextProcessor",
    "Qwen2VLForConditionalGeneration": "Qwen2VLProcessor",
    "Qwen2_5_VLForConditionalGeneration": "Qwen2_5_VLProcessor",
    "Qwen3VLForConditionalGeneration": "Qwen3VLProcessor",
    # SmolVLM's own differs in videos only, for which it needs a further library.
    "SmolVLMForConditionalGeneration": "Idefics3Processor",
}
"""transformers' class of a model → that of its processor.

Each is compared with `generate` in the tests: how a sequence goes on after its images (positions,
masks, what the cache holds) differs from kind to kind, so no other is served.
"""
