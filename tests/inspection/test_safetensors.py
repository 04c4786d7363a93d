import json
import struct
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import deserialize
from safetensors.numpy import save
from safetensors.torch import save as save_torch

from stoker.inspection import FailureCode, InspectionError, safetensors
from stoker.inspection.files import FileSet
from stoker.inspection.safetensors import (
    DTYPE_BITS,
    MAX_HEADER_BYTES,
    Header,
    read_header,
)

from .builders import MemoryFiles, raw_safetensors

ONE = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}


def read(data: bytes) -> Header:
    return read_header(FileSet(MemoryFiles({"model.safetensors": data})), "model.safetensors")


def refusal(data: bytes) -> str:
    with pytest.raises(InspectionError) as caught:
        read(data)
    assert caught.value.code is FailureCode.BAD_SAFETENSORS
    assert caught.value.path == "model.safetensors"
    assert caught.value.message.startswith("model.safetensors ")
    assert caught.value.message.endswith("upload that file.")
    assert len(caught.value.message) < 500
    return caught.value.message


class TestAccepts:
    def test_counts_what_the_library_wrote(self) -> None:
        data = save(
            {
                "a": np.zeros((3, 5), np.float32),
                "b": np.zeros((), np.int64),
                "empty": np.zeros((0, 7), np.float16),
            },
            metadata={"format": "np", "note": 'quotes " and \\ and \n'},
        )
        header = read(data)
        assert header.parameters == 16
        assert header.data_bytes == 68
        assert header.bytes_by_dtype() == {"F32": 60, "I64": 8, "F16": 0}

    @pytest.mark.parametrize(
        "dtype",
        [
            torch.bool,
            torch.uint8,
            torch.int8,
            torch.int16,
            torch.uint16,
            torch.float16,
            torch.bfloat16,
            torch.int32,
            torch.uint32,
            torch.float32,
            torch.complex64,
            torch.float64,
            torch.int64,
            torch.uint64,
            torch.float8_e4m3fn,
            torch.float8_e5m2,
            torch.float8_e8m0fnu,
            torch.float8_e4m3fnuz,
            torch.float8_e5m2fnuz,
            torch.float4_e2m1fn_x2,
        ],
        ids=str,
    )
    def test_every_dtype_of_torch(self, dtype: torch.dtype) -> None:
        values = torch.zeros(2, 8, dtype=torch.uint8)
        stored = values.view(dtype) if dtype.itemsize == 1 else torch.zeros(2, 8, dtype=dtype)
        data = save_torch({"a": stored})
        logical = deserialize(data)[0][1]["shape"]
        assert read(data).parameters == np.prod(logical)

    @pytest.mark.parametrize("dtype", DTYPE_BITS)
    def test_every_dtype_of_the_library(self, dtype: str) -> None:
        size = DTYPE_BITS[dtype]
        tensor = {"dtype": dtype, "shape": [4, 2], "data_offsets": [0, size]}
        data = raw_safetensors({"a": tensor}, bytes(size))
        deserialize(data)
        assert read(data).parameters == 8

    def test_no_tensor_at_all(self) -> None:
        assert read(raw_safetensors("{}")).parameters == 0

    def test_white_space_and_another_order_of_keys(self) -> None:
        header = (
            '{ "b" :\n{"shape" : [ 2 ,\t3 ] , "data_offsets":[0 , 24],"dtype" : "F32" }\r\n,'
            '"__metadata__" : { } , "\\u0061":{"d\\u0074ype":"U8","shape":[],"data_offsets":[24,25]'
            "} } \n"
        )
        data = raw_safetensors(header, bytes(25))
        deserialize(data)
        assert read(data).tensors.keys() == {"a", "b"}

    def test_header_whose_length_looks_like_a_pickle(self) -> None:
        padded = json.dumps({"a": ONE}).ljust(0x0280)
        data = raw_safetensors(padded, bytes(24))
        assert data.startswith(b"\x80\x02")
        assert read(data).parameters == 6


@pytest.mark.case(9)
class TestLength:
    @pytest.mark.parametrize("size", range(8))
    def test_shorter_than_its_length_field(self, size: int) -> None:
        assert "cannot hold" in refusal(bytes(size))

    @pytest.mark.parametrize(
        "length", [2**63, 2**63 - 1, 2**64 - 1, 2**64 - 8, 2**32, MAX_HEADER_BYTES + 1]
    )
    def test_lying_length(self, length: int) -> None:
        assert "claims a header" in refusal(raw_safetensors({"a": ONE}, bytes(24), length))

    def test_length_past_the_end(self) -> None:
        right = len(json.dumps({"a": ONE}))
        assert "claims a header" in refusal(raw_safetensors({"a": ONE}, b"", right + 1))

    def test_nothing_is_read_for_a_lying_length(self) -> None:
        files = MemoryFiles({"x": raw_safetensors({"a": ONE}, bytes(24), 2**63)})
        with pytest.raises(InspectionError):
            read_header(FileSet(files), "x")
        assert files.bytes_read == 8

    @pytest.mark.parametrize("cut", [1, 8, 23, 24, 25, 60])
    def test_truncated(self, cut: int) -> None:
        refusal(raw_safetensors({"a": ONE}, bytes(24))[:-cut])

    def test_store_that_gives_less_than_it_says(self) -> None:
        class Short(MemoryFiles):
            def read(self, path: str, offset: int, length: int) -> bytes:
                return super().read(path, offset, length)[:-1]

        with pytest.raises(InspectionError) as caught:
            read_header(FileSet(Short({"x": raw_safetensors({"a": ONE}, bytes(24))})), "x")
        assert caught.value.code is FailureCode.TRUNCATED


class TestGrammar:
    @pytest.mark.parametrize(
        "header",
        [
            "",
            " {}",
            "[]",
            "null",
            '"a"',
            "{",
            "{}}",
            "{}x",
            "{}\x00",
            "{},{}",
            "{,}",
            '{"a"}',
            '{"a":}',
            '{"a":1}',
            '{"a":null}',
            '{"a":[]}',
            '{"a":{}}',
            '{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},}',
            '{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0],}}',
            '{"a":{"dtype":"U8","shape":[0,],"data_offsets":[0,0]}}',
            '{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]} "b":{}}',
            '{"a":{"dtype":"U8","shape":[0]"data_offsets":[0,0]}}',
            '{\'a\':{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}',
            '{a:{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}',
            '{"a\n":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}',
            '{"\\ud800":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}',
            '{"\\x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}',
            '{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}/**/}',
            '{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}\u00a0}',
            '{"a":{"dtype":"U8","shape":[\u0661],"data_offsets":[0,1]}}',
            '{"__metadata__":null}',
            '{"__metadata__":[]}',
            '{"__metadata__":{"a":1}}',
            '{"__metadata__":{"a":{"b":"c"}}}',
            '{"__metadata__":{"a":null}}',
            '{"__metadata__":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}',
        ],
    )
    def test_refuses(self, header: str) -> None:
        refusal(raw_safetensors(header))

    def test_not_utf8(self) -> None:
        assert "UTF-8" in refusal(raw_safetensors(b'{"\xff":{}}'))

    @pytest.mark.parametrize("bracket", ["[", '{"a":'])
    def test_deep_nesting(self, bracket: str) -> None:
        refusal(raw_safetensors('{"a":' + bracket * 100_000))
        refusal(raw_safetensors('{"a":{"shape":' + bracket * 100_000))

    @pytest.mark.parametrize(
        "header",
        [
            '{"a":%s,"a":%s}',
            '{"a":%s,"\\u0061":%s}',
            '{"__metadata__":{},"a":%s,"__metadata__":{},"b":%s}',
            '{"__metadata__":{"k":"1","k":"2"},"a":%s,"b":%s}',
        ],
    )
    def test_duplicate_keys(self, header: str) -> None:
        empty = '{"dtype":"U8","shape":[0],"data_offsets":[0,0]}'
        assert "twice" in refusal(raw_safetensors(header % (empty, empty)))

    @pytest.mark.parametrize(
        "fields",
        [
            '"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]',
            '"dtype":"U8","shape":[0],"shape":[0],"data_offsets":[0,0]',
            '"dtype":"U8","shape":[0],"data_offsets":[0,0],"data_offsets":[0,0]',
            '"dtype":"U8","shape":[0],"data_offsets":[0,0],"more":"x"',
        ],
    )
    def test_second_or_unknown_fields(self, fields: str) -> None:
        assert "repeated or unknown" in refusal(raw_safetensors('{"a":{' + fields + "}}"))


@pytest.mark.case(9)
class TestTensors:
    @pytest.mark.parametrize("field", ["dtype", "shape", "data_offsets"])
    def test_missing_field(self, field: str) -> None:
        tensor = {key: value for key, value in ONE.items() if key != field}
        assert "lacks" in refusal(raw_safetensors({"a": tensor}, bytes(24)))

    @pytest.mark.parametrize(
        "dtype",
        ["", "f32", "F32 ", "float32", "F128", "I4", "F8", "F6", "PICKLE", 7, None, ["F32"]],
    )
    def test_dtype(self, dtype: Any) -> None:
        refusal(raw_safetensors({"a": {**ONE, "dtype": dtype}}, bytes(24)))

    @pytest.mark.parametrize(
        "shape",
        [
            "[6.0]",
            "[6e0]",
            "[-6]",
            "[-2,-3]",
            "[-0]",
            "[+6]",
            "[06]",
            "[true,6]",
            "[null]",
            '["6"]',
            "[[6]]",
            "6",
            "null",
            "{}",
            "[NaN]",
            "[0x6]",
            "[6 1]",
            "[4294967296,4294967296]",
            "[18446744073709551616]",
            "[9223372036854775807,9223372036854775807,6]",
            "[99999999999999999999999999999999]",
            "[" + "1" * 10_000 + "]",
            "[" + "1," * 64 + "6]",
        ],
    )
    def test_shape(self, shape: str) -> None:
        header = '{"a":{"dtype":"F32","shape":' + shape + ',"data_offsets":[0,24]}}'
        refusal(raw_safetensors(header, bytes(24)))

    @pytest.mark.parametrize("shape", [[0, 2**63], [2**63, 0], [2**40, 2**40, 0], [0, 10**19]])
    def test_nonsensical_dimension_beside_a_zero(self, shape: list[int]) -> None:
        tensor = {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}
        assert "impossibly large" in refusal(raw_safetensors({"a": tensor}))

    @pytest.mark.parametrize(
        "offsets",
        [
            "[0.0,24]",
            "[0,24.0]",
            "[0,2.4e1]",
            "[-24,0]",
            "[24,0]",
            "[0]",
            "[]",
            "[0,24,24]",
            "[false,24]",
            '["0","24"]',
            "null",
            "{}",
            "[0,18446744073709551640]",
            "[18446744073709551592,0]",
            "[18446744073709551616,18446744073709551640]",
            "[0,23]",
            "[0,25]",
            "[1,25]",
            "[24,48]",
        ],
    )
    def test_offsets(self, offsets: str) -> None:
        header = '{"a":{"dtype":"F32","shape":[2,3],"data_offsets":' + offsets + "}}"
        refusal(raw_safetensors(header, bytes(24)))

    @pytest.mark.parametrize(("dtype", "count"), [("F4", 3), ("F6_E2M3", 2), ("F6_E3M2", 5)])
    def test_packed_numbers_fill_whole_bytes(self, dtype: str, count: int) -> None:
        size = -(-count * DTYPE_BITS[dtype] // 8)
        tensor = {"dtype": dtype, "shape": [count], "data_offsets": [0, size]}
        assert "do not fill" in refusal(raw_safetensors({"a": tensor}, bytes(size)))

    def test_long_name(self) -> None:
        for header in ({"x" * 513: ONE}, {"\n" * 513: ONE}):
            assert "512" in refusal(raw_safetensors(header, bytes(24)))
        assert read(raw_safetensors({"x" * 512: ONE}, bytes(24))).parameters == 6

    def test_too_many_tensors(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(safetensors, "MAX_TENSORS", 100)
        empty = {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}
        assert read(raw_safetensors({str(n): empty for n in range(100)})).parameters == 0
        assert "tensors" in refusal(raw_safetensors({str(n): empty for n in range(101)}))

    def test_too_much_metadata(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(safetensors, "MAX_METADATA", 100)
        for count, accepted in ((100, True), (101, False)):
            data = raw_safetensors({"__metadata__": {str(n): "" for n in range(count)}})
            if accepted:
                read(data)
            else:
                assert "entries" in refusal(data)

    def test_names_are_shown_harmlessly(self) -> None:
        message = refusal(raw_safetensors({"\x1b[2J\u202e" + "x" * 300: {**ONE, "dtype": "?"}}))
        assert message.isprintable()
        assert message.isascii()


@pytest.mark.case(9)
class TestLayout:
    @staticmethod
    def file(*spans: tuple[int, int], size: int) -> bytes:
        header = {
            f"t{n}": {"dtype": "U8", "shape": [end - begin], "data_offsets": [begin, end]}
            for n, (begin, end) in enumerate(spans)
        }
        return raw_safetensors(header, bytes(size))

    def test_any_order_is_fine(self) -> None:
        assert read(self.file((8, 16), (0, 8), (16, 16), (0, 0), size=16)).parameters == 16

    @pytest.mark.parametrize(
        ("spans", "size", "fault"),
        [
            ([(0, 8), (4, 12)], 12, "overlaps"),
            ([(0, 8), (0, 8)], 8, "overlaps"),
            ([(0, 12), (4, 8)], 12, "overlaps"),
            ([(0, 8), (9, 12)], 12, "hole"),
            ([(1, 8)], 8, "hole"),
            ([(0, 8), (12, 12)], 12, "hole"),
            ([(0, 8)], 9, "cut short or padded"),
            ([(0, 8)], 7, "cut short or padded"),
            ([(0, 2**59)], 8, "cut short or padded"),
            ([], 1, "cut short or padded"),
        ],
    )
    def test_refuses(self, spans: list[tuple[int, int]], size: int, fault: str) -> None:
        assert fault in refusal(self.file(*spans, size=size))


class TestCost:
    """A header may have 100 MB. Its content must not cost many times that."""

    @pytest.mark.parametrize(
        "header",
        [
            b'{"a":' + b"[" * 5_000_000,
            b'{"a":{"shape":[' + b"1," * 5_000_000,
            b'{"' + b"x" * 5_000_000,
            b'{"' + b"\\n" * 5_000_000,
            b"{" + b" " * 5_000_000,
            b'{"a":{' + b'"x":0,' * 1_000_000,
            b'{"a":' + b"{" * 5_000_000,
        ],
    )
    def test_stops_at_the_first_fault(self, header: bytes) -> None:
        refusal(raw_safetensors(header))

    def test_reads_the_header_only(self) -> None:
        tensor = {"dtype": "U8", "shape": [1 << 20], "data_offsets": [0, 1 << 20]}
        data = raw_safetensors({"a": tensor}, bytes(1 << 20))
        files = MemoryFiles({"x": data})
        read_header(FileSet(files), "x")
        assert files.bytes_read == len(data) - (1 << 20)
        assert struct.unpack("<Q", data[:8])[0] == files.bytes_read - 8
