"""Folders of diffusers pipelines: accepted folders, refused folders and the reasons."""

from typing import Any

import pytest

from stoker.inspection import FailureCode, Inspection, InspectionError, inspect
from tests.inspection.builders import MemoryFiles, config, dumps, weights

PIPELINES = {
    "text-to-image": ["StableDiffusionPipeline"],
    "image-to-image": ["StableDiffusionInpaintPipeline"],
    "feature-extraction": ["*Model"],
}
COMPONENTS: dict[str, Any] = {
    "vae": ["diffusers", "AutoencoderKL"],
    "text_encoder": ["transformers", "CLIPTextModel"],
    "tokenizer": ["transformers", "CLIPTokenizer"],
    "unet": ["diffusers", "UNet2DConditionModel"],
    "scheduler": ["diffusers", "PNDMScheduler"],
    "safety_checker": [None, None],
    "feature_extractor": ["transformers", "CLIPImageProcessor"],
    "requires_safety_checker": False,
}
WEIGHTS = "diffusion_pytorch_model.safetensors"


def index(**changes: Any) -> bytes:
    head = {"_class_name": "StableDiffusionPipeline", "_diffusers_version": "0.42.1"}
    return dumps({**head, **COMPONENTS, **changes})


def pipeline(**changes: bytes | None) -> dict[str, bytes]:
    """Returns a valid folder, with files replaced or (None) left out. `__` stands for a slash."""
    files: dict[str, bytes | None] = {
        "model_index.json": index(),
        "README.md": b"# A pipeline",
        "vae/config.json": dumps({"_class_name": "AutoencoderKL"}),
        f"vae/{WEIGHTS}": weights(decoder=(6, 2)),
        "text_encoder/config.json": config("CLIPTextModel"),
        "text_encoder/model.safetensors": weights(embeddings=(5, 4)),
        "tokenizer/vocab.json": dumps({"a": 0}),
        "tokenizer/merges.txt": b"",
        "tokenizer/tokenizer_config.json": dumps({}),
        "unet/config.json": dumps({"_class_name": "UNet2DConditionModel"}),
        f"unet/{WEIGHTS}": weights(conv=(3, 3), bias=(3,)),
        "scheduler/scheduler_config.json": dumps({}),
        "feature_extractor/preprocessor_config.json": dumps({}),
    }
    files |= changes
    return {path: content for path, content in files.items() if content is not None}


def found(files: dict[str, bytes], wanted: str | None = None) -> Inspection:
    return inspect(MemoryFiles(files), wanted, PIPELINES)


def refusal(files: dict[str, bytes], wanted: str | None = None) -> InspectionError:
    with pytest.raises(InspectionError) as refused:
        found(files, wanted)
    assert refused.value.message.isprintable()
    return refused.value


class TestAccepted:
    def test_pipeline(self) -> None:
        inspection = found(pipeline())
        assert inspection.pipeline == "text-to-image"
        assert inspection.architecture == "StableDiffusionPipeline"
        assert inspection.model_type == "diffusers"
        assert inspection.engines == ("diffusers",)
        assert inspection.parameters == 12 + 20 + 12
        assert inspection.weight_bytes == 4 * inspection.parameters
        assert inspection.dtype == "F32"
        assert inspection.warnings == ()

    def test_shards(self) -> None:
        shards = {
            "unet/diffusion_pytorch_model-00001-of-00002.safetensors": weights(a=(2,)),
            "unet/diffusion_pytorch_model-00002-of-00002.safetensors": weights(b=(3,)),
        }
        names = [path.removeprefix("unet/") for path in shards]
        placed = {"metadata": {"total_size": 20}, "weight_map": dict(zip("ab", names, strict=True))}
        files = pipeline(**{f"unet/{WEIGHTS}": None}) | shards
        files[f"unet/{WEIGHTS}.index.json"] = dumps(placed)
        assert found(files).parameters == 12 + 20 + 5
        del files["unet/diffusion_pytorch_model-00002-of-00002.safetensors"]
        error = refusal(files)
        assert error.code is FailureCode.MISSING_SHARD
        assert error.path == f"unet/{WEIGHTS}.index.json"

    def test_what_is_not_loaded_is_warned_of(self) -> None:
        files = pipeline()
        files["unet/diffusion_pytorch_model.fp16.safetensors"] = weights(conv=(3, 3))
        files["v1-5-pruned.safetensors"] = weights()
        inspection = found(files)
        assert inspection.parameters == 44
        assert [warning.partition(" ")[0] for warning in inspection.warnings] == [
            "unet/diffusion_pytorch_model.fp16.safetensors",
            "v1-5-pruned.safetensors",
        ]

    def test_the_spelling_of_stable_diffusion_1(self) -> None:
        entry = ["stable_diffusion", "StableDiffusionSafetyChecker"]
        files = pipeline(**{"model_index.json": index(safety_checker=entry)})
        assert refusal(files).code is FailureCode.MISSING_CONFIG
        files["safety_checker/config.json"] = config("StableDiffusionSafetyChecker")
        files["safety_checker/model.safetensors"] = weights(concepts=(2, 2))
        assert found(files).parameters == 48

    def test_pipeline_is_checked(self) -> None:
        assert found(pipeline(), "text-to-image").pipeline == "text-to-image"
        assert refusal(pipeline(), "image-to-image").code is FailureCode.PIPELINE_MISMATCH


def with_index(**changes: Any) -> dict[str, bytes]:
    return pipeline(**{"model_index.json": index(**changes)})


REFUSED = {
    "custom pipeline": (with_index(_class_name=["pipeline", "Mine"]), FailureCode.REMOTE_CODE),
    "custom_pipeline": (with_index(custom_pipeline="someone/else"), FailureCode.REMOTE_CODE),
    "module": (with_index(unet=["my_module", "MyUNet"]), FailureCode.REMOTE_CODE),
    "os": (with_index(unet=["os", "system"]), FailureCode.REMOTE_CODE),
    "submodule": (with_index(unet=["diffusers.models", "X"]), FailureCode.REMOTE_CODE),
    "other pipeline's module": (
        with_index(unet=["stable_diffusion", "UNet2DConditionModel"]),
        FailureCode.REMOTE_CODE,
    ),
    "onnx": (with_index(unet=["onnxruntime.training", "ORTModule"]), FailureCode.REMOTE_CODE),
    "auto class": (with_index(unet=["diffusers", "AutoModel"]), FailureCode.BAD_CONFIG),
    "nested pipeline": (
        with_index(unet=["diffusers", "DiffusionPipeline"]),
        FailureCode.BAD_CONFIG,
    ),
    "dotted class": (with_index(unet=["diffusers", "models.UNet"]), FailureCode.BAD_CONFIG),
    "three": (with_index(unet=["diffusers", "UNet2DModel", "x"]), FailureCode.BAD_CONFIG),
    "half null": (with_index(unet=[None, "UNet2DModel"]), FailureCode.BAD_CONFIG),
    "object": (with_index(unet={"a": 1}), FailureCode.BAD_CONFIG),
    "path": (with_index(**{"../vae": ["diffusers", "AutoencoderKL"]}), FailureCode.BAD_CONFIG),
    "absolute path": (
        with_index(**{"/etc": ["diffusers", "AutoencoderKL"]}),
        FailureCode.BAD_CONFIG,
    ),
    "unknown class": (with_index(_class_name="Nothing"), FailureCode.UNSUPPORTED_ARCHITECTURE),
    "no class": (with_index(_class_name=None), FailureCode.BAD_CONFIG),
    "not an object": (pipeline(**{"model_index.json": b"[]"}), FailureCode.BAD_CONFIG),
    "no models": (
        pipeline(**{"model_index.json": dumps({"_class_name": "StableDiffusionPipeline"})}),
        FailureCode.BAD_CONFIG,
    ),
    "missing component": (
        pipeline(**{"unet/config.json": None, f"unet/{WEIGHTS}": None}),
        FailureCode.MISSING_CONFIG,
    ),
    "missing weights": (pipeline(**{f"unet/{WEIGHTS}": None}), FailureCode.MISSING_WEIGHTS),
    "missing scheduler": (
        pipeline(**{"scheduler/scheduler_config.json": None}),
        FailureCode.MISSING_CONFIG,
    ),
    "missing tokenizer": (
        pipeline(**{"tokenizer/tokenizer_config.json": None, "tokenizer/vocab.json": None}),
        FailureCode.MISSING_TOKENIZER,
    ),
    "pickle": (
        pipeline(
            **{f"unet/{WEIGHTS}": None, "unet/diffusion_pytorch_model.bin": b"\x80\x04K\x01."}
        ),
        FailureCode.PICKLE,
    ),
    "wrong library's name": (
        pipeline(**{"text_encoder/model.safetensors": None, f"text_encoder/{WEIGHTS}": weights()}),
        FailureCode.MISSING_WEIGHTS,
    ),
    "variant alone": (
        pipeline(
            **{
                f"unet/{WEIGHTS}": None,
                "unet/diffusion_pytorch_model.fp16.safetensors": weights(),
            }
        ),
        FailureCode.MISSING_WEIGHTS,
    ),
    "quantized": (
        pipeline(
            **{"unet/config.json": dumps({"quantization_config": {"quant_method": "torchao"}})}
        ),
        FailureCode.UNSUPPORTED_FORMAT,
    ),
    "noise without a seed": (
        pipeline(**{"model_index.json": index(scheduler=["diffusers", "DPMSolverSDEScheduler"])}),
        FailureCode.UNSUPPORTED_MODEL,
    ),
    "image processor without Pillow": (
        pipeline(
            **{
                "model_index.json": index(
                    feature_extractor=["transformers", "CLIPImageProcessorFast"]
                )
            }
        ),
        FailureCode.MISSING_PACKAGE,
    ),
    "code of a component": (
        pipeline(**{"text_encoder/config.json": dumps({"auto_map": {"AutoModel": "a.B"}})}),
        FailureCode.REMOTE_CODE,
    ),
    "program": (pipeline(**{"unet/my_unet.py": b"import os"}), FailureCode.EXECUTABLE),
    "broken weights": (pipeline(**{f"unet/{WEIGHTS}": b"x" * 100}), FailureCode.BAD_SAFETENSORS),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    files, code = REFUSED[case]
    assert refusal(files).code is code


def test_what_to_do_is_said() -> None:
    files = REFUSED["variant alone"][0]
    error = refusal(files)
    assert error.message.startswith("In unet/ ")
    assert error.path == "unet/diffusion_pytorch_model.fp16.safetensors"
    assert f"Rename the weights to {WEIGHTS}" in error.message
