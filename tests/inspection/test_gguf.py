"""Headers of GGUF files, right and false ones, and the models that they may contain."""

import struct
import time
from pathlib import Path
from typing import Any

import gguf as library
import numpy as np
import pytest
from transformers.integrations.gguf import gguf_tokenizer_mapping

from stoker.inspection import FailureCode, InspectionError
from stoker.inspection.files import FileSet
from stoker.inspection.gguf import (
    BLOCKS,
    MAX_ITEMS,
    GgufArray,
    GgufHeader,
    read_gguf,
)
from stoker.inspection.gguf_model import (
    ARCHITECTURES,
    PRE_TOKENIZERS,
    GgufModel,
    find_model,
)

from .builders import MemoryFiles, gguf, gguf_string

U32, U64, STRING, ARRAY = 4, 10, 8, 9


def read(data: bytes) -> GgufHeader:
    return read_gguf(FileSet(MemoryFiles({"m.gguf": data})), "m.gguf")


def find(*beside: str, **changes: Any) -> GgufModel:
    return find_model("m.gguf", read(gguf(**changes)), ["m.gguf", *beside])


def array(kind: int, count: int, items: bytes = b"") -> bytes:
    return struct.pack("<IIQ", ARRAY, kind, count) + items


def string(length: int, text: bytes = b"") -> bytes:
    return struct.pack("<IQ", STRING, length) + text


class TestHeader:
    def test_reads_what_the_library_writes(self, tmp_path: Path) -> None:
        writer = library.GGUFWriter(tmp_path / "m.gguf", "llama")
        writer.add_context_length(77)
        writer.add_token_list(["a", "\u0120b", "\u4e2d"])
        writer.add_array("numbers", [1, 2, 3])
        writer.add_float64("double", 0.1)
        writer.add_uint64("wide", 2**63)
        writer.add_int8("small", -3)
        writer.add_bool("yes", True)
        data = np.arange(64, dtype=np.float32).reshape(2, 32)
        for name, stored in (("a.weight", "F32"), ("b.weight", "F16"), ("c.weight", "Q8_0")):
            kind = library.GGMLQuantizationType[stored]
            writer.add_tensor(name, library.quantize(data, kind), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        header = read((tmp_path / "m.gguf").read_bytes())
        assert header.metadata == {
            "general.architecture": "llama",
            "llama.context_length": 77,
            "tokenizer.ggml.tokens": GgufArray(3),
            "numbers": [1, 2, 3],
            "double": 0.1,
            "wide": 2**63,
            "small": -3,
            "yes": True,
        }
        theirs = library.GGUFReader(tmp_path / "m.gguf").tensors
        assert header.parameters == 192
        for tensor in theirs:
            ours = header.tensors[tensor.name]
            assert ours.kind == tensor.tensor_type.name
            assert ours.shape == tuple(tensor.shape.tolist())
            assert ours.end - ours.begin == tensor.n_bytes

    def test_the_types_are_the_librarys(self) -> None:
        for number, (name, numbers, size) in BLOCKS.items():
            kind = library.GGMLQuantizationType(number)
            assert kind.name == name
            assert library.GGML_QUANT_SIZES[kind] == (numbers, size)
            # Each type can be dequantized.
            raw = np.zeros((1, size), np.uint8)
            assert library.dequantize(raw, kind).size == numbers

    def test_another_alignment(self) -> None:
        data = gguf(fields={"general.alignment": 128}, alignment=128)
        assert [tensor.begin for tensor in read(data).tensors.values()] == [0, 128, 256]

    @pytest.mark.case(9)
    @pytest.mark.parametrize(
        ("changes", "told"),
        [
            ({"fields": {"x": string(2**63)}}, "declares"),
            ({"fields": {"x": string(2**64 - 1)}}, "declares"),
            ({"fields": {"x": string(1 << 20)}}, "ends within"),
            ({"fields": {"x": string(2, b"\xff\xfe")}}, "not UTF-8"),
            ({"fields": {"x" * 300: 1}}, "declares 300 bytes for a metadata key"),
            ({"fields": {"x": struct.pack("<II", 13, 0)}}, "unknown type 13"),
            ({"fields": {"x": struct.pack("<II", 2**31, 0)}}, "unknown type"),
            ({"fields": {"x": array(ARRAY, 1, array(U32, 0)[4:])}}, "nested arrays in"),
            ({"fields": {"x": array(99, 1)}}, "unknown type 99"),
            ({"fields": {"x": array(U32, 2**64 - 1)}}, "items in its arrays"),
            ({"fields": {"x": array(STRING, 2**61)}}, "items in its arrays"),
            ({"fields": {"x": array(0, MAX_ITEMS + 1)}}, "items in its arrays"),
            ({"fields": {"x": array(U64, MAX_ITEMS // 2)}}, "ends within"),
            ({"fields": {"x": array(STRING, 4, gguf_string("a"))}}, ""),
            ({"fields": {"general.alignment": 0}}, "alignment"),
            ({"fields": {"general.alignment": 48}}, "alignment"),
            ({"fields": {"general.alignment": 1 << 30}}, "alignment"),
            ({"fields": {"general.alignment": "32"}}, "alignment"),
            ({"metadata": 14}, ""),
            ({"metadata": 16}, ""),
            ({"metadata": 2**32}, "metadata entries"),
            ({"tensors": 2}, ""),
            ({"tensors": 4}, ""),
            ({"tensors": 2**63}, "tensors"),
            ({"shapes": {"a": ((), 0)}}, "0 dimensions"),
            ({"shapes": {"a": ((1, 1, 1, 1, 1), 0)}}, "5 dimensions"),
            ({"shapes": {"a": ((0, 4), 0)}}, "impossible shape"),
            ({"shapes": {"a": ((2**63, 2), 0)}, "padding": -(2**66)}, "impossible shape"),
            ({"shapes": {"a": ((31, 4), 8)}}, "whole blocks of Q8_0"),
            ({"shapes": {"a" * 200: ((4,), 0)}}, "declares 200 bytes for a tensor's name"),
            ({"offsets": {"blk.0.attn_q.weight": 0}}, "overlaps"),
            ({"offsets": {"blk.0.attn_q.weight": 95}}, "overlaps"),
            ({"offsets": {"blk.0.attn_q.weight": 97}}, "is not where"),
            ({"offsets": {"output_norm.weight": 1 << 40}}, "is not where"),
            ({"offsets": {"output_norm.weight": 2**64 - 32}}, "is not where"),
            ({"padding": -1}, "cut short or padded"),
            ({"padding": 32}, "cut short or padded"),
        ],
    )
    def test_lies(self, changes: dict[str, Any], told: str) -> None:
        if changes.get("padding", 0) < -1:
            data = gguf(**changes | {"padding": 0, "shapes": {"a": ((1, 1), 0)}})
            shape = struct.pack("<QQ", *changes["shapes"]["a"][0])
            data = data.replace(struct.pack("<QQ", 1, 1), shape)
        else:
            data = gguf(**changes)
        with pytest.raises(InspectionError, match=told or None) as caught:
            read(data)
        assert caught.value.code is FailureCode.BAD_GGUF
        assert caught.value.message.isascii()
        assert len(caught.value.message) < 600

    @pytest.mark.case(9)
    def test_every_cut_is_refused(self) -> None:
        data = gguf()
        for length in range(len(data)):
            with pytest.raises(InspectionError):
                read(data[:length])

    def test_keys_and_names_given_twice(self) -> None:
        data = gguf(fields={"llama.context_lengtX": 3})
        with pytest.raises(InspectionError, match="twice"):
            read(data.replace(b"lengtX", b"length"))
        data = gguf(shapes={"a": ((8,), 0), "b": ((8,), 0)})
        with pytest.raises(InspectionError, match="two tensors"):
            read(data.replace(gguf_string("b"), gguf_string("a")))

    def test_a_type_that_weights_are_not_stored_in(self) -> None:
        for kind in (9, 15, 24, 28, 1000):
            with pytest.raises(InspectionError, match="Quantize the model again") as caught:
                read(gguf(shapes={"a": ((256,), kind)}))
            assert caught.value.code is FailureCode.UNSUPPORTED_FORMAT

    def test_large_vocabularies_are_read_in_time(self) -> None:
        tokens = array(STRING, 500_000, b"".join(gguf_string(f"t{n}") for n in range(500_000)))
        files = MemoryFiles({"m.gguf": gguf(fields={"x": tokens})})
        began = time.process_time()
        read_gguf(FileSet(files), "m.gguf")
        assert time.process_time() - began < 10
        assert files.bytes_read < 2 * len(files.files["m.gguf"])


class TestModel:
    def test_what_is_told(self) -> None:
        gguf_model = find()
        assert gguf_model == GgufModel("LlamaForCausalLM", "llama", "F16", 3, has_template=True)

    def test_mixtures_have_their_own_names(self) -> None:
        shapes = {"token_embd.weight": ((256, 3), 12)}
        assert find(shapes=shapes, fields={"general.file_type": 15}).dtype == "Q4_K_M"
        assert find(shapes=shapes).dtype == "Q4_K"
        assert find(shapes=shapes, fields={"general.file_type": 999}).dtype == "Q4_K"

    @pytest.mark.parametrize("kind", ["bert", "clip", "falcon", "x\u202e", 3, None])
    def test_other_architectures(self, kind: Any) -> None:
        with pytest.raises(InspectionError) as caught:
            find(fields={"general.architecture": kind})
        assert caught.value.code is FailureCode.UNSUPPORTED_ARCHITECTURE
        assert ", ".join(ARCHITECTURES) in caught.value.message

    @pytest.mark.parametrize(
        ("changes", "code"),
        [
            ({"llama.expert_count": 8}, FailureCode.UNSUPPORTED_ARCHITECTURE),
            ({"split.count": 3}, FailureCode.UNSUPPORTED_FORMAT),
            ({"llama.rope.scaling.type": "longrope"}, FailureCode.UNSUPPORTED_FORMAT),
            ({"llama.rope.scaling.type": "linear"}, FailureCode.BAD_GGUF),
            ({"llama.rope.dimension_count": 2}, FailureCode.UNSUPPORTED_FORMAT),
            ({"llama.block_count": None}, FailureCode.BAD_GGUF),
            ({"llama.block_count": 0}, FailureCode.BAD_GGUF),
            ({"llama.block_count": 2**32 - 1}, FailureCode.BAD_GGUF),
            ({"llama.block_count": "many"}, FailureCode.BAD_GGUF),
            ({"llama.feed_forward_length": [1, 2]}, FailureCode.BAD_GGUF),
            ({"llama.attention.head_count_kv": [1, 2]}, FailureCode.BAD_GGUF),
            ({"llama.attention.head_count": 9}, FailureCode.BAD_GGUF),
            ({"llama.rope.freq_base": "x"}, FailureCode.BAD_GGUF),
            ({"tokenizer.ggml.tokens": None}, FailureCode.BAD_GGUF),
            ({"tokenizer.ggml.tokens": 3}, FailureCode.BAD_GGUF),
            ({"tokenizer.ggml.tokens": ["a"]}, FailureCode.BAD_GGUF),
            ({"tokenizer.ggml.eos_token_id": 3}, FailureCode.BAD_GGUF),
            ({"tokenizer.chat_template": 3}, FailureCode.BAD_GGUF),
            ({"tokenizer.ggml.merges": None}, FailureCode.MISSING_TOKENIZER),
            ({"tokenizer.ggml.pre": None}, FailureCode.MISSING_TOKENIZER),
            ({"tokenizer.ggml.pre": "smollm"}, FailureCode.MISSING_TOKENIZER),
            ({"tokenizer.ggml.model": "bert"}, FailureCode.MISSING_TOKENIZER),
            ({"tokenizer.ggml.model": "llama"}, FailureCode.MISSING_TOKENIZER),
        ],
    )
    def test_refuses(self, changes: dict[str, Any], code: FailureCode) -> None:
        with pytest.raises(InspectionError) as caught:
            find(fields=changes)
        assert caught.value.code is code
        assert caught.value.path == "m.gguf"

    def test_tensors_that_would_be_left_out(self) -> None:
        shapes = {"token_embd.weight": ((8, 3), 0), "blk.0.attn_q_norm.weight": ((8,), 0)}
        with pytest.raises(InspectionError, match=r"attn_q_norm") as caught:
            find(shapes=shapes)
        assert caught.value.code is FailureCode.UNSUPPORTED_FORMAT

    def test_a_tokenizer_beside_it_will_do(self) -> None:
        assert find("tokenizer.json", fields={"tokenizer.ggml.pre": "smollm"}).tokens == 3

    def test_the_pre_tokenizers_are_known_to_transformers(self) -> None:
        known = gguf_tokenizer_mapping.GGUF_PRE_TOKENIZER_SPLITS
        # An unlisted pre-tokenizer is read as that of GPT-2.
        assert PRE_TOKENIZERS - known.keys() == {"gpt-2"}
