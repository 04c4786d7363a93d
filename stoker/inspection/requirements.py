"""Packages that classes of transformers and diffusers need in addition to those of every install.

The libraries report this only when they create an object, and the gateway imports neither. The
requirements are therefore listed here. `tests/inspection/test_requirements.py` compares them with
the libraries.
"""

from collections.abc import Mapping

EXTRAS: Mapping[str, tuple[str, ...]] = {
    "japanese": ("fugashi", "ipadic", "unidic-lite"),
    "languages": ("emoji", "rjieba", "sacremoses", "tiktoken", "uroman"),
    "tables": ("pandas",),
}
"""Maps an extra of Stoker that some models need to its packages, by their index names."""

TOKENIZERS: Mapping[str, str] = {
    "BioGptTokenizer": "sacremoses",
    "CpmAntTokenizer": "rjieba",
    "CpmTokenizer": "rjieba",
    "FSMTTokenizer": "sacremoses",
    "FlaubertTokenizer": "sacremoses",
    "RoFormerTokenizer": "rjieba",
    "TapasTokenizer": "pandas",
    "XLMTokenizer": "sacremoses",
}
"""Maps a tokenizer's class to the package that it always needs. Other classes need packages
depending on their settings.
"""

DICTIONARIES: Mapping[str, str] = {"ipadic": "ipadic", "unidic_lite": "unidic-lite"}
"""Maps a dictionary of Japanese words to its package."""

BY_MODEL_TYPE: Mapping[str, str] = {
    "biogpt": "BioGptTokenizer",
    "cpmant": "CpmAntTokenizer",
    "flaubert": "FlaubertTokenizer",
    "fsmt": "FSMTTokenizer",
    "roformer": "RoFormerTokenizer",
    "tapas": "TapasTokenizer",
    "vits": "VitsTokenizer",
    "xlm": "XLMTokenizer",
}
"""Maps a model type to the tokenizer's class if no file names one."""

WITHOUT_PLACES = frozenset(
    {
        "BartphoTokenizer",
        "BertGenerationTokenizer",
        "BertJapaneseTokenizer",
        "BertweetTokenizer",
        "BioGptTokenizer",
        "BlenderbotSmallTokenizer",
        "ByT5Tokenizer",
        "CTRLTokenizer",
        "CanineTokenizer",
        "ClvpTokenizer",
        "CpmAntTokenizer",
        "CpmTokenizer",
        "DiaTokenizer",
        "EsmTokenizer",
        "FSMTTokenizer",
        "FlaubertTokenizer",
        "GPTNeoXJapaneseTokenizer",
        "GPTSw3Tokenizer",
        "M2M100Tokenizer",
        "MarianTokenizer",
        "MgpstrTokenizer",
        "MyT5Tokenizer",
        "PLBartTokenizer",
        "PerceiverTokenizer",
        "PhobertTokenizer",
        "ProphetNetTokenizer",
        "RagTokenizer",
        "RoCBertTokenizer",
        "SiglipTokenizer",
        "Speech2TextTokenizer",
        "SpeechT5Tokenizer",
        "TapasTokenizer",
        "VitsTokenizer",
        "Wav2Vec2CTCTokenizer",
        "Wav2Vec2PhonemeCTCTokenizer",
        "XLMTokenizer",
    }
)
"""Tokenizers that do not report which characters a token stands for."""

MODELS: Mapping[str, str] = {
    "dinat": "natten",
    "higgs_audio_v2_tokenizer": "torchaudio",
    "layoutlmv2": "detectron2",
    "sam3": "torchvision",
    "sam3_lite_text": "torchvision",
    "sam3_lite_text_text_model": "torchvision",
    "sam3_vision_model": "torchvision",
    "sam3_vit_model": "torchvision",
    "timm_backbone": "timm",
    "timm_wrapper": "timm",
}
"""Maps a model type, of the model or of a part of it, to the package that it needs."""

TIMM_BY_DEFAULT = frozenset(
    {
        "conditional_detr",
        "dab-detr",
        "deformable_detr",
        "detr",
        "omdet-turbo",
        "table-transformer",
    }
)
"""Model types with a backbone from timm if the configuration describes none."""

NEEDS_TORCHVISION = frozenset(
    {
        "CHMv2ImageProcessor",
        "Cohere2VisionImageProcessor",
        "DINOv3ViTImageProcessor",
        "DepthProImageProcessor",
        "Gemma4UnifiedImageProcessor",
        "Inkling2ImageProcessor",
        "InklingImageProcessor",
        "Kimi_K25ImageProcessor",
        "Lfm2VlImageProcessor",
        "Llama4ImageProcessor",
        "MiniCPMOcrImageProcessor",
        "MiniMaxM3VLImageProcessor",
        "Molmo2ImageProcessor",
        "MuseGlimmerImageProcessor",
        "NemotronH_Omni_Reasoning_V3ImageProcessor",
        "NeoMMEImageProcessor",
        "PI0ImageProcessor",
        "PPDocLayoutV2ImageProcessor",
        "PPDocLayoutV3ImageProcessor",
        "PPDocLayoutV4ImageProcessor",
        "PPFormulaNetImageProcessor",
        "PPLCNetImageProcessor",
        "PPOCRV5ServerDetImageProcessor",
        "PPOCRV5ServerRecImageProcessor",
        "PPOCRV6SmallRecImageProcessor",
        "PerceptionLMImageProcessor",
        "Phi4MultimodalImageProcessor",
        "RfDetrImageProcessor",
        "SLANeXtImageProcessor",
        "Sam3ImageProcessor",
        "Sapiens2ImageProcessor",
        "Step3p7ImageProcessor",
        "Tipsv2DptImageProcessor",
        "Tipsv2ImageProcessor",
        "UVDocImageProcessor",
        "UltraVBertImageProcessor",
        "UnlimitedOcrImageProcessor",
    }
)
"""Image processors that have no variant for Pillow."""

QUANTIZED: Mapping[str, str] = {
    "aqlm": "aqlm",
    "auto-round": "auto-round",
    "awq": "gptqmodel",
    "bitsandbytes": "bitsandbytes",
    "bitsandbytes_4bit": "bitsandbytes",
    "bitsandbytes_8bit": "bitsandbytes",
    "compressed-tensors": "compressed-tensors",
    "eetq": "kernels",
    "fbgemm_fp8": "fbgemm-gpu",
    "fouroversix": "fouroversix",
    "fp_quant": "fp-quant",
    "gptq": "gptqmodel",
    "higgs": "flute-kernel",
    "hqq": "hqq",
    "metal": "kernels",
    "nvfp4": "kernels",
    "quanto": "optimum-quanto",
    "quark": "amd-quark",
    "sinq": "sinq",
    "spqr": "spqr_quant",
    "torchao": "torchao",
    "vptq": "vptq",
}
"""Maps a method of `quantization_config` to the package that loads it. transformers itself reads
others.
"""

SCHEDULERS = frozenset({"CosineDPMSolverMultistepScheduler", "DPMSolverSDEScheduler"})
"""Schedulers of diffusers that draw their noise with torchsde, which accepts no generator."""
