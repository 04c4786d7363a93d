import json
from typing import Any

import pytest

from stoker.inspection import FailureCode, InspectionError
from stoker.inspection.documents import (
    MAX_CONTAINERS,
    MAX_JSON_BYTES,
    MAX_TOKENIZER_BYTES,
    MAX_VALUES,
    Json,
    load_json,
    refuse_remote_code,
)
from stoker.inspection.files import FileSet

from .builders import MemoryFiles, dumps


def load(data: bytes, path: str = "config.json") -> Json:
    return load_json(FileSet(MemoryFiles({path: data})), path)


def refusal(path: str, document: Any) -> InspectionError:
    data = document if isinstance(document, bytes) else dumps(document)
    with pytest.raises(InspectionError) as caught:
        refuse_remote_code(path, load(data, path))
    assert caught.value.path == path
    return caught.value


def accepts(path: str, document: Any) -> None:
    refuse_remote_code(path, load(dumps(document), path))


class TestLoad:
    def test_gives_what_is_there(self) -> None:
        assert load(b' {"a": [1, 2.5, true, null, "\\u00e9"]} ') == {"a": [1, 2.5, True, None, "é"]}

    def test_numbers_that_only_python_writes(self) -> None:
        assert load(b'{"time_step_limit": [0.0, Infinity]}') == {
            "time_step_limit": [0.0, float("inf")]
        }

    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"{",
            b"{}}",
            b"{'a': 1}",
            b'{"a": 1,}',
            b"// x\n{}",
            b'{"a": undefined}',
            b'\xef\xbb\xbf{"a": 1}',
            b'{"a": "\xff"}',
            b'{"a": "\\ud800"}',
            b'{"a": NaN',
            b'{"a": NaN, "b": "\xff"}',
            b'{"a": 01}',
            b"NaN" + b"[" * 500_000,
            b"[NaN," * 100_000,
            b"[" * 100_000,
            b"[" * 100_000 + b"]" * 100_000,
            b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
            b"[" + b"1" * 5000 + b", NaN]",
        ],
    )
    def test_malformed(self, data: bytes) -> None:
        with pytest.raises(InspectionError) as caught:
            load(data)
        assert caught.value.code is FailureCode.BAD_JSON
        assert caught.value.message.startswith("config.json ")

    @pytest.mark.parametrize(
        "data",
        [
            b"[" + b"[]," * (MAX_CONTAINERS + 1) + b"[]]",
            b"[" + b"1," * (MAX_VALUES + 1) + b"1]",
        ],
        ids=["containers", "values"],
    )
    def test_too_many_values(self, data: bytes) -> None:
        with pytest.raises(InspectionError) as caught:
            load(data)
        assert caught.value.code is FailureCode.BAD_JSON

    @pytest.mark.parametrize(
        ("path", "limit"),
        [("config.json", MAX_JSON_BYTES), ("tokenizer.json", MAX_TOKENIZER_BYTES)],
    )
    def test_size(self, path: str, limit: int) -> None:
        files = MemoryFiles({path: b'"' + b"x" * (limit - 2) + b'"'})
        load_json(FileSet(files), path)
        files.files[path] += b" "
        files.bytes_read = 0
        with pytest.raises(InspectionError) as caught:
            load_json(FileSet(files), path)
        assert caught.value.code is FailureCode.FILE_TOO_LARGE
        assert files.bytes_read == 0


@pytest.mark.case(3)
class TestRemoteCode:
    @pytest.mark.parametrize("key", ["auto_map", "custom_pipelines", "trust_remote_code"])
    @pytest.mark.parametrize(
        "path",
        [
            "config.json",
            "tokenizer_config.json",
            "tokenizer.json",
            "vocab.json",
            "preprocessor_config.json",
            "processor_config.json",
            "generation_config.json",
            "special_tokens_map.json",
            "1_Pooling/config.json",
            "whatever.json",
        ],
    )
    @pytest.mark.parametrize("value", [{"AutoModel": "x.Y"}, "x", True, [1], 1.5])
    def test_anywhere(self, key: str, path: str, value: Any) -> None:
        for document in (
            {key: value},
            {"text_config": {key: value}},
            {"a": [[{"b": [{key: value}]}]]},
            [{key: value}],
            {"model": {"vocab": {"x": {key: value}}}},
            {"model": {key: value}},
            {"added_tokens": [{"id": 0, key: value}]},
        ):
            assert refusal(path, document).code is FailureCode.REMOTE_CODE

    def test_escaped_key(self) -> None:
        error = refusal("config.json", b'{"a": {"auto\\u005fmap": {"AutoModel": "x.Y"}}}')
        assert error.code is FailureCode.REMOTE_CODE

    def test_among_numbers_that_only_python_writes(self) -> None:
        error = refusal("config.json", b'{"a": Infinity, "auto_map": {"AutoModel": "x.Y"}}')
        assert error.code is FailureCode.REMOTE_CODE

    def test_at_the_deepest_level_that_is_allowed(self) -> None:
        inner: Any = {"auto_map": {"a": "b"}}
        for _ in range(98):
            inner = {"x": inner}
        assert refusal("config.json", inner).code is FailureCode.REMOTE_CODE
        assert refusal("config.json", {"x": {"x": inner}}).code is FailureCode.BAD_JSON

    @pytest.mark.parametrize("value", [None, False, {}, [], "", 0])
    def test_value_that_counts_as_false(self, value: Any) -> None:
        accepts("config.json", {"auto_map": value, "a": {"trust_remote_code": value}})

    def test_as_a_string_only(self) -> None:
        accepts("config.json", {"note": "auto_map", "list": ["trust_remote_code"]})

    @pytest.mark.parametrize(
        ("path", "document"),
        [
            ("vocab.json", {"auto_map": 17, "trust_remote_code": 18, "custom_pipelines": 0}),
            ("vocab.json", {"eng": {"auto_map": 17}}),
            ("tokenizer/vocab.json", {"auto_map": 17}),
            ("added_tokens.json", {"auto_map": 17}),
            ("tokenizer.json", {"model": {"vocab": {"auto_map": 17}}}),
            ("tokenizer.json", {"model": {"vocab": [["auto_map", -1.5]]}}),
        ],
    )
    def test_token_of_a_vocabulary(self, path: str, document: Any) -> None:
        accepts(path, document)

    @pytest.mark.parametrize(
        ("path", "document"),
        [
            ("config.json", {"trust_remote_code": 1}),
            ("config.json", {"model": {"vocab": {"trust_remote_code": 1}}}),
            ("tokenizer.json", {"trust_remote_code": 1}),
            ("tokenizer.json", {"vocab": {"trust_remote_code": 1}}),
            ("tokenizer.json", {"model": {"vocab": {"trust_remote_code": True}}}),
            ("tokenizer.json", {"model": {"vocab": {"a": {"trust_remote_code": "1"}}}}),
            ("vocab.json", {"trust_remote_code": True}),
        ],
    )
    def test_not_a_token_of_a_vocabulary(self, path: str, document: Any) -> None:
        assert refusal(path, document).code is FailureCode.REMOTE_CODE

    @pytest.mark.parametrize(
        "document",
        [
            {"attn_implementation": "somebody/kernel"},
            {"_attn_implementation": "paged|somebody/kernel@v1"},
            {"a": {"attn_implementation": {"": "somebody/kernel"}}},
            {"experts_implementation": "somebody/kernel:function"},
        ],
    )
    def test_kernels_from_the_hub(self, document: Any) -> None:
        assert refusal("config.json", document).code is FailureCode.REMOTE_CODE

    def test_kernels_of_the_library(self) -> None:
        accepts("config.json", {"attn_implementation": "sdpa", "_attn_implementation": None})
        accepts("config.json", {"attn_implementation": {"text_config": "eager"}})

    @pytest.mark.parametrize("key", ["activation_fn", "activation_function"])
    def test_activation_class(self, key: str) -> None:
        for name in ("os.system", "torch.hub.load", "x.torch.nn.Tanh"):
            assert refusal("2_Dense/config.json", {key: name}).code is FailureCode.REMOTE_CODE
        for name in ("gelu", "torch.nn.modules.activation.Tanh", None):
            accepts("2_Dense/config.json", {key: name})

    @pytest.mark.parametrize(
        "kind",
        ["custom_st.Transformer", "os.system", "sentence_transformers_evil.X", "", 7, ["x"], {}],
    )
    def test_module_class(self, kind: Any) -> None:
        good = {"path": "", "type": "sentence_transformers.models.Transformer"}
        accepts("modules.json", [good])
        assert refusal("modules.json", [good, {"type": kind}]).code is FailureCode.REMOTE_CODE

    def test_large_tokenizer(self) -> None:
        vocab = {f"token{n}": n for n in range(20_000)} | {"auto_map": 20_000}
        merges = [["to", "ken"]] * 20_000
        document = {"model": {"vocab": vocab, "merges": merges}}
        accepts("tokenizer.json", document)
        merges.append({"auto_map": "x"})  # type: ignore[arg-type]
        assert refusal("tokenizer.json", document).code is FailureCode.REMOTE_CODE

    def test_message_says_what_to_do(self) -> None:
        error = refusal("config.json", json.loads('{"auto_map": {"AutoModel": "x.Y"}}'))
        assert "'auto_map'" in error.message
        assert "remove the key" in error.message
