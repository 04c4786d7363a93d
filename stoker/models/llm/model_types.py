"""The supported kinds of language models. Imports little, because the gateway and replicas import
it.
"""

from collections.abc import Mapping

TEXT_GENERATION = "text-generation"
IMAGE_TEXT_TO_TEXT = "image-text-to-text"
LENGTH_FIELDS = (
    "max_position_embeddings",
    "max_seq_len",
    "max_sequence_length",
    "seq_length",
    "context_length",
    "model_max_length",
)
"""Fields of a configuration that may name the maximum tokens of a sequence. The first one counts.
"""
VISION: Mapping[str, str] = {
    "Gemma3ForConditionalGeneration": "Gemma3Processor",
    "Idefics3ForConditionalGeneration": "Idefics3Processor",
    "LlavaForConditionalGeneration": "LlavaProcessor",
    "LlavaNextForConditionalGeneration": "LlavaNextProcessor",
    "Qwen2VLForConditionalGeneration": "Qwen2VLProcessor",
    "Qwen2_5_VLForConditionalGeneration": "Qwen2_5_VLProcessor",
    "Qwen3VLForConditionalGeneration": "Qwen3VLProcessor",
    # SmolVLM's own processor differs only for videos, for which it needs a further library.
    "SmolVLMForConditionalGeneration": "Idefics3Processor",
}
"""Maps transformers' class of a model to the class of its processor.

The tests compare each with `generate`. The continuation after images (positions, masks, contents of
the cache) differs between kinds, so no other kind is supported.
"""

_ENCODERS = """
bert big_bird camembert data2vec-text electra ernie megatron-bert rembert roberta
roberta-prelayernorm roc_bert roformer xlm-roberta xlm-roberta-xl xmod
"""
_DECODERS = """
afmoe apertus arcee aria_text axk1 axk2 bailing_hybrid bamba beam biogpt bitnet bloom codegen cohere
cohere2 cohere2_moe cohere_compass_text ctrl cwm dbrx deepseek_v2 deepseek_v3 deepseek_v32
deepseek_v4 diffllama doge dots1 dots3_note dots3_note_text ernie4_5 ernie4_5_moe exaone4 exaone_moe
falcon falcon_h1 falcon_mamba flex_olmo flint fuyu gemma gemma2 gemma3_text gemma3n_text gemma4_text
gemma4_unified_text glm glm4 glm4_moe glm4_moe_lite glm_moe_dsa gpt-sw3 gpt2 gpt_bigcode gpt_neo
gpt_neox gpt_neox_japanese gpt_oss gptj granite granite_swa granitemoe granitemoe_swa
granitemoehybrid granitemoeshared helium hrm_text hunyuan_v1_dense hunyuan_v1_moe hy_v3 hy_v4
hyperclovax inkling2_text inkling_text internlm3 iquestcoder jais2 jamba jetmoe kimi_linear kolibri1
laguna lfm2 lfm2_moe lfm3 llama llama4 llama4_text longcat_flash mamba mamba2 mellum mimo_v2_flash
minicpm3 minimax minimax_m2 minimax_m3_vl_text ministral ministral3 mistral mixtral
modernbert-decoder mpt nanochat nemotron nemotron_h olmo olmo2 olmo3 olmo_hybrid olmoe opt persimmon
phi phi3 phi4_multimodal phimoe qwen2 qwen2_moe qwen3 qwen3_5 qwen3_5_moe qwen3_5_moe_text
qwen3_5_text qwen3_moe qwen3_next qwen4_exp qwen4_exp_text rwkv seed_oss smollm3 solar_open stablelm
starcoder2 vaultgemma xglm xlstm youtu zamba zamba2 zaya
"""
ENCODERS = frozenset(_ENCODERS.split())
"""Kinds of `TEXT` that generate text only if their configuration sets `is_decoder`."""
TEXT = ENCODERS | frozenset(_DECODERS.split())
"""Language models for text, by `model_type`. Each was compared with `generate`, alone and in a
batch. `python -m tests.llm.test_families` repeats the comparison. The contents of a cache, the
state between passes, and the effect of padding differ between kinds, so no other kind is supported.
"""

_DECODER = (
    "is the decoder of an encoder-decoder model, and does not work without the "
    "encoder. Upload the whole model."
)
_HELPER = "drafts for another model, and generates no answers by itself."
_PART = "is part of an image model, and transformers does not load it alone. Upload a text model."
_SOUND = "generates sound, not text."
_WITHOUT_CACHE = (
    "keeps no cache of earlier tokens: each token would cost as much as the whole text."
)
UNFIT: Mapping[str, str] = {
    "bart": _DECODER,
    "bigbird_pegasus": _DECODER,
    "blenderbot": _DECODER,
    "blenderbot-small": _DECODER,
    "blt": "cannot continue a text: `generate` of transformers fails on it, too.",
    "cpmant": "inserts its own tokens before a text, which then cannot be read in pieces.",
    "emu3": _PART,
    "emu3_text_model": _PART,
    "gemma4_assistant": _HELPER,
    "gemma4_unified_assistant": _HELPER,
    "git": "describes images. Use the pipeline image-to-text.",
    "marian": _DECODER,
    "mbart": _DECODER,
    "mllama": _PART,
    "mllama_text_model": _PART,
    "moshi": _SOUND,
    "musicgen": _SOUND,
    "musicgen_melody": _SOUND,
    "mvp": _DECODER,
    "openai-gpt": _WITHOUT_CACHE,
    "pegasus": _DECODER,
    "plbart": _DECODER,
    "prophetnet": _DECODER,
    "recurrent_gemma": "keeps its state in the model and not with each text: requests would change "
    "each other's answers.",
    "trocr": _DECODER,
    "whisper": _DECODER,
    "xlm": _WITHOUT_CACHE,
    "xlnet": _WITHOUT_CACHE,
}
"""Maps other kinds that transformers treats as language models to the reason why they are not
supported. The reason follows the architecture's name in a sentence.
"""
