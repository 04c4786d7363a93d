import bz2
import gzip
import io
import lzma
import pickle
import py_compile
import sys
import tarfile
import zipfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch

from stoker.inspection import FailureCode, InspectionError
from stoker.inspection.content import MAX_TEXT_BYTES, check_content
from stoker.inspection.documents import load_json
from stoker.inspection.files import FileSet
from stoker.inspection.recognise import FileKind
from stoker.inspection.safetensors import read_header
from stoker.inspection.sentencepiece import MAX_BYTES

from .builders import MemoryFiles, gguf, sentencepiece, weights


def check(path: str, data: bytes) -> FileKind:
    """Applies inspection's checks of a single file, before those of the whole set."""
    files = FileSet(MemoryFiles({path: data}))
    kind = check_content(files, path)
    if kind is FileKind.SAFETENSORS:
        read_header(files, path)
    elif kind is FileKind.JSON:
        load_json(files, path)
    return kind


def refusal(path: str, data: bytes) -> InspectionError:
    with pytest.raises(InspectionError) as caught:
        check(path, data)
    assert caught.value.path == path
    assert caught.value.message.startswith(path)
    return caught.value


def zipped(compression: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        archive.writestr("config.json", "{}")
    return buffer.getvalue()


def tarred(mode: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:  # type: ignore[call-overload]
        member = tarfile.TarInfo("../../config.json")
        member.size = 2
        archive.addfile(member, io.BytesIO(b"{}"))
    return buffer.getvalue()


def torch_saved(*, legacy: bool) -> bytes:
    buffer = io.BytesIO()
    torch.save({"weight": torch.zeros(3)}, buffer, _use_new_zipfile_serialization=not legacy)
    return buffer.getvalue()


def numpy_saved() -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.array([{"an": "object"}], dtype=object), allow_pickle=True)
    return buffer.getvalue()


class Exploit:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (print, ("never printed",))


PICKLED = {
    "dict": {"weight": [1, 2.5, "x"], "bias": (True, None)},
    "empty dict": {},
    "empty list": [],
    "list": [1, 2],
    "state": OrderedDict(a=1),
    "string": "x",
    "number": 7,
    "float": 1.5,
    "exploit": Exploit(),
    "class": OrderedDict,
    "array": np.zeros(3),
}
FOREIGN = {
    "zip": (zipped(), FailureCode.ARCHIVE),
    "deflated zip": (zipped(zipfile.ZIP_DEFLATED), FailureCode.ARCHIVE),
    "empty zip": (b"PK\x05\x06" + bytes(18), FailureCode.ARCHIVE),
    "gzip": (gzip.compress(b"{}"), FailureCode.ARCHIVE),
    "bzip2": (bz2.compress(b"{}"), FailureCode.ARCHIVE),
    "xz": (lzma.compress(b"{}"), FailureCode.ARCHIVE),
    "lzma": (lzma.compress(b"{}", lzma.FORMAT_ALONE), FailureCode.ARCHIVE),
    "zstd": (b"\x28\xb5\x2f\xfd\x24\x02\x11\x00\x00{}" + bytes(4), FailureCode.ARCHIVE),
    "lz4": (b"\x04\x22\x4d\x18" + bytes(20), FailureCode.ARCHIVE),
    "7z": (b"7z\xbc\xaf\x27\x1c" + bytes(20), FailureCode.ARCHIVE),
    "rar": (b"Rar!\x1a\x07\x01\x00" + bytes(20), FailureCode.ARCHIVE),
    "tar": (tarred("w"), FailureCode.ARCHIVE),
    "tar.gz": (tarred("w:gz"), FailureCode.ARCHIVE),
    "elf": (b"\x7fELF\x02\x01\x01" + bytes(60), FailureCode.EXECUTABLE),
    "pe": (b"MZ\x90\x00\x03\x00" + bytes(60), FailureCode.EXECUTABLE),
    "mach-o": (b"\xcf\xfa\xed\xfe\x07\x00\x00\x01" + bytes(60), FailureCode.EXECUTABLE),
    "fat mach-o": (b"\xca\xfe\xba\xbe\x00\x00\x00\x02" + bytes(60), FailureCode.EXECUTABLE),
    "shell script": (b"#!/bin/sh\nid\n", FailureCode.EXECUTABLE),
    "python script": (b"#!/usr/bin/env python3\nprint()\n", FailureCode.EXECUTABLE),
    "hdf5": (b"\x89HDF\r\n\x1a\n" + bytes(60), FailureCode.UNSUPPORTED_FORMAT),
    "onnx": (b"\x08\x08\x12\x07pytorch\x1a\x03\x32.1:\x80", FailureCode.UNSUPPORTED_FORMAT),
    "npy": (numpy_saved(), FailureCode.UNSUPPORTED_FORMAT),
    "torch zip": (torch_saved(legacy=False), FailureCode.PICKLE),
    "torch legacy": (torch_saved(legacy=True), FailureCode.PICKLE),
    "lfs": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 90868376\n",
        FailureCode.LFS_POINTER,
    ),
}
# A file is judged by its content, not by its name.
NAMES = [
    "model.safetensors",
    "config.json",
    "README.md",
    "x.bin",
    "spiece.model",
    "x.gguf",
    "LICENSE",
]


class TestRefusedByContent:
    @pytest.mark.case(4, 7)
    @pytest.mark.parametrize("name", NAMES)
    @pytest.mark.parametrize("what", FOREIGN)
    def test_foreign_formats(self, what: str, name: str) -> None:
        data, code = FOREIGN[what]
        assert refusal(name, data).code is code

    @pytest.mark.case(1)
    @pytest.mark.parametrize("name", NAMES)
    @pytest.mark.parametrize("protocol", range(6))
    @pytest.mark.parametrize("what", PICKLED)
    def test_pickles(self, what: str, protocol: int, name: str) -> None:
        error = refusal(name, pickle.dumps(PICKLED[what], protocol))
        # Protocol 1 has no magic number. Such a file is refused too, but not identified.
        if protocol != 1:
            assert error.code is FailureCode.PICKLE
            assert "pickle" in error.message

    @pytest.mark.case(1)
    @pytest.mark.parametrize(
        "data",
        [
            b"cos\nsystem\n(S'id'\ntR.",
            b"c__builtin__\neval\n(Vprint()\ntR.",
            b"(S'id'\nios\nsystem\n.",
            b"(ios\nsystem\n.",
            b"(cos\nsystem\nS'id'\no.",
            b"cos\nsystem\np0\n(S'id'\np1\ntp2\nRp3\n.",
            b"(dp0\nS'a'\np1\nI1\ns.",
            b"(lp0\nI1\naI2\na.",
            b"(I1\nI2\ntp0\n.",
            b"ccopy_reg\n_reconstructor\np0\n(c__main__\nX\np1\n.",
            b"S'x'\np0\n.",
            b"Vx\np0\n.",
            b"I1\n.",
            b"I1\nI2\n.",
            b"F1.5\n.",
            b"L1L\n.",
            b"}q\x00.",
            b"]q\x00(K\x01e.",
            b"(dp0\n.\n",
        ],
    )
    def test_old_pickles_that_read_like_text(self, data: bytes) -> None:
        for name in NAMES:
            assert refusal(name, data).code is FailureCode.PICKLE

    def test_compiled_python(self, tmp_path: Path) -> None:
        source = tmp_path / "x.py"
        source.write_text("x = 1\n")
        data = Path(py_compile.compile(str(source), str(tmp_path / "x"), doraise=True) or "")
        assert refusal("README.md", data.read_bytes()).code is FailureCode.EXECUTABLE

    def test_this_interpreter(self) -> None:
        with Path(sys.executable).open("rb") as program:
            head = program.read(65536)
        assert refusal("model.safetensors", head).code is FailureCode.EXECUTABLE

    @pytest.mark.case(2)
    @pytest.mark.parametrize("name", ["x.bin", "x", "x.md", "x.json", "spiece.model", "x.png"])
    def test_unknown_binaries(self, name: str) -> None:
        codes = {
            ".bin": FailureCode.UNKNOWN_CONTENT,
            ".png": FailureCode.UNKNOWN_CONTENT,
            ".json": FailureCode.BAD_JSON,
            ".model": FailureCode.BAD_SENTENCEPIECE,
        }
        for data in (b"\x00\x01\x02\x03" * 9, b"\x89PNG\r\n\x1a\n" + bytes(9), b"\xde\xad\xbe\xef"):
            assert refusal(name, data).code is codes.get(Path(name).suffix, FailureCode.BAD_TEXT)

    @pytest.mark.parametrize(
        "name", ["x.bin", "x.pt", "x.h5", "x.pkl", "x.safetensors.bak", "x.xml"]
    )
    @pytest.mark.parametrize("data", [b"", b"harmless", b"{}"])
    def test_text_under_a_name_of_no_known_kind(self, name: str, data: bytes) -> None:
        assert refusal(name, data).code is FailureCode.UNKNOWN_CONTENT

    @pytest.mark.parametrize("name", ["pytorch_model.bin", "config.json", "README.md", "x.gguf"])
    def test_safetensors_under_another_name(self, name: str) -> None:
        error = refusal(name, weights())
        assert error.code is FailureCode.UNKNOWN_CONTENT
        assert "rename it so that it ends in .safetensors" in error.message

    def test_gguf_under_another_name(self) -> None:
        error = refusal("model.bin", gguf())
        assert error.code is FailureCode.UNKNOWN_CONTENT
        assert ".gguf" in error.message

    @pytest.mark.case(2)
    def test_pickle_and_safetensors_in_one(self) -> None:
        # These bytes could begin a pickle or a header of 89 MB. Never accepted under a pickle's
        # name.
        data = b"\x80\x02X\x05\x00\x00\x00\x00{" + b" " * 90
        assert refusal("pytorch_model.bin", data).code is FailureCode.UNKNOWN_CONTENT


class TestRefusedByName:
    @pytest.mark.case(3)
    @pytest.mark.parametrize(
        "name",
        [
            "modeling.py",
            "MODELING.PY",
            "x.pyc",
            "x.pyd",
            "x.pyo",
            "x.pyi",
            "x.so",
            "x.dll",
            "x.dylib",
            "x.sh",
            "x.bat",
            "x.exe",
            "x.ps1",
            "x.ipynb",
            "x.whl",
            "x.jar",
            "a/b/modeling.py",
            "model.safetensors.py",
        ],
    )
    def test_programs(self, name: str) -> None:
        for data in (b"", b"x = 1\n", b"{}", weights()):
            assert refusal(name, data).code is FailureCode.EXECUTABLE


class TestText:
    @pytest.mark.parametrize(
        "name",
        [
            "README.md",
            "LICENSE",
            "LICENSE.txt",
            "NOTICE",
            "vocab.txt",
            "merges.txt",
            "chat_template.jinja",
            ".gitattributes",
            "bpe.codes",
            "qwen.tiktoken",
            "Readme.MD",
            "a/b/notes.txt",
        ],
    )
    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"plain",
            "\ufeffbyte order mark, é, 漢字, 🔥\r\n\tend".encode(),
            "漢".encode() * 2_000_000,
            b"[PAD]\n[UNK]\nthe\n##s\n.",
            b"cat\ndog\nfish\n(\n)\n.",
            b"cat\ndog\n(\n)\n.",
            b"question\nanswer.",
            b"This model\nis good.",
            b"Large models\ncan do much.",
            b"Fine\n.",
            b"In\n1\n.",
            b"(see below).",
            b"test of p1\n.",
        ],
    )
    def test_accepts(self, name: str, data: bytes) -> None:
        assert check(name, data) is FileKind.TEXT

    @pytest.mark.parametrize(
        "data",
        [
            "sixteen".encode("utf-16"),
            "café".encode("latin-1"),
            b"a\x00b",
            b"\x01",
            b"\x1b[2J",
            b"x" * 10_000 + b"\xff",
            b"x" * 10_000 + b"\x00",
            b"x" * 10_000 + "漢".encode()[:2],
            "漢".encode()[:2],
            b"\xed\xa0\x80",
            b"\xc0\xaf",
        ],
    )
    def test_refuses(self, data: bytes) -> None:
        assert refusal("README.md", data).code is FailureCode.BAD_TEXT

    def test_character_across_the_end_of_the_head_and_of_a_chunk(self) -> None:
        for filler in (4095, (1 << 20) - 1):
            assert check("vocab.txt", b"x" * filler + "漢".encode()) is FileKind.TEXT

    def test_size(self) -> None:
        class Huge(MemoryFiles):
            def sizes(self) -> dict[str, int]:
                return {"vocab.txt": MAX_TEXT_BYTES + 1}

            def read(self, path: str, offset: int, length: int) -> bytes:
                self.bytes_read += length
                return b"x" * length

        files = Huge({})
        with pytest.raises(InspectionError) as caught:
            check_content(FileSet(files), "vocab.txt")
        assert caught.value.code is FailureCode.FILE_TOO_LARGE
        assert files.bytes_read < 10_000


class TestSentencePiece:
    @pytest.mark.parametrize("name", ["spiece.model", "source.spm", "sentencepiece.bpe.model"])
    def test_accepts(self, name: str) -> None:
        assert check(name, sentencepiece()) is FileKind.SENTENCEPIECE
        assert check(name, sentencepiece(1000)) is FileKind.SENTENCEPIECE

    def test_accepts_tiktoken_text(self) -> None:
        assert check("tokenizer.model", b"IQ== 0\nIg== 1\n") is FileKind.TEXT

    @pytest.mark.parametrize(
        "data",
        [
            b"",
            sentencepiece()[:-1],
            sentencepiece() + b"\x00",
            sentencepiece() + b"\x32\x00",
            sentencepiece() + b"\x08\x01",
            sentencepiece() + b"\x80",
            sentencepiece() + b"\x0a\xff\xff\xff\xff\x0f",
            sentencepiece() + b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
            sentencepiece() + sentencepiece(),
            sentencepiece(0),
            sentencepiece() + b"\xc2\x0c\x00" * 2,
            sentencepiece() + b"\x0a\x00" * 500_000,
            b"\x0a\x00" * 50,
            b"\x0a\xff\x01",
        ],
    )
    def test_refuses(self, data: bytes) -> None:
        assert refusal("spiece.model", data).code is FailureCode.BAD_SENTENCEPIECE

    def test_accepts_extensions(self) -> None:
        assert check("spiece.model", sentencepiece() + b"\xc2\x0c\x00") is FileKind.SENTENCEPIECE

    def test_size(self) -> None:
        data = sentencepiece() + bytes(MAX_BYTES)
        assert refusal("spiece.model", data).code is FailureCode.FILE_TOO_LARGE


class TestGguf:
    @pytest.mark.parametrize("version", [2, 3])
    def test_accepts(self, version: int) -> None:
        assert check("model.gguf", gguf(version)) is FileKind.GGUF

    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"GGUF",
            gguf()[:23],
            gguf(1),
            gguf(4),
            gguf(3 << 24),
            gguf(tensors=0),
            gguf(tensors=2**63),
            gguf(metadata=2**64 - 1),
            b"GGML" + gguf()[4:],
            sentencepiece(),
        ],
    )
    def test_refuses(self, data: bytes) -> None:
        assert refusal("model.gguf", data).code is FailureCode.BAD_GGUF

    def test_text_about_gguf_is_text(self) -> None:
        assert check("README.md", b"GGUF files of this model") is FileKind.TEXT
