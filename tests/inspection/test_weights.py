from typing import Any

import pytest

from stoker.inspection import FailureCode, Inspection, InspectionError, inspect

from .builders import PIPELINES, MemoryFiles, dumps, model, raw_safetensors, sharded, weights

INDEX = "model.safetensors.index.json"
ONE = "model-00001-of-00002.safetensors"
TWO = "model-00002-of-00002.safetensors"
SHARDS = {ONE: {"a": (2, 3), "b": (4,)}, TWO: {"c": (5,)}}


def run(files: dict[str, bytes]) -> Inspection:
    return inspect(MemoryFiles(files), None, PIPELINES)


def refusal(files: dict[str, bytes]) -> InspectionError:
    with pytest.raises(InspectionError) as caught:
        run(files)
    return caught.value


class TestOneFile:
    def test_counts(self) -> None:
        summary = run(model(model_safetensors=weights(a=(3, 4), b=(2,), c=(0, 9))))
        assert (summary.parameters, summary.weight_bytes, summary.dtype) == (14, 56, "F32")
        assert summary.warnings == ()

    def test_dtype_is_that_of_most_bytes(self) -> None:
        header = {
            "a": {"dtype": "U8", "shape": [10], "data_offsets": [0, 10]},
            "b": {"dtype": "BF16", "shape": [6], "data_offsets": [10, 22]},
        }
        summary = run(model(model_safetensors=raw_safetensors(header, bytes(22))))
        assert summary.dtype == "BF16"

    @pytest.mark.parametrize("data", [raw_safetensors("{}"), weights(a=(0,))])
    def test_no_numbers(self, data: bytes) -> None:
        assert refusal(model(model_safetensors=data)).code is FailureCode.MISSING_WEIGHTS

    @pytest.mark.parametrize("name", ["weights.safetensors", "model.fp16.safetensors"])
    def test_wrong_name(self, name: str) -> None:
        error = refusal({**model(model_safetensors=None), name: weights()})
        assert error.code is FailureCode.MISSING_WEIGHTS
        assert "Rename the weights to model.safetensors" in error.message

    def test_none_in_the_top_folder(self) -> None:
        files = model(model_safetensors=None)
        assert refusal(files).code is FailureCode.MISSING_WEIGHTS
        files["unet/model.safetensors"] = weights()
        assert refusal(files).code is FailureCode.MISSING_WEIGHTS

    def test_warns_of_what_is_not_loaded(self) -> None:
        summary = run(
            {**model(), "consolidated.safetensors": weights(), "x/y.safetensors": weights()}
        )
        assert summary.parameters == 44
        assert [text.split()[0] for text in summary.warnings] == [
            "consolidated.safetensors",
            "x/y.safetensors",
        ]

    def test_what_is_not_loaded_is_checked_all_the_same(self) -> None:
        error = refusal({**model(), "x/y.safetensors": weights()[:-1]})
        assert (error.code, error.path) == (FailureCode.BAD_SAFETENSORS, "x/y.safetensors")

    def test_counts_the_layers_of_modules(self) -> None:
        modules = [
            {"path": "", "type": "sentence_transformers.models.Transformer"},
            {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
            {"path": "2_Dense", "type": "sentence_transformers.models.Dense"},
            {"path": 7},
            "x",
        ]
        files = {
            **model(),
            "modules.json": dumps(modules),
            "2_Dense/model.safetensors": weights(w=(6, 6)),
            "3_Dense/model.safetensors": weights(w=(6, 6)),
        }
        summary = run(files)
        assert summary.parameters == 44 + 36
        assert [text.split()[0] for text in summary.warnings] == ["3_Dense/model.safetensors"]


class TestShards:
    def test_counts(self) -> None:
        summary = run(sharded(SHARDS, total_size=60))
        assert (summary.parameters, summary.weight_bytes, summary.warnings) == (15, 60, ())

    def test_single_shard_of_the_plain_name(self) -> None:
        assert run(sharded({"model.safetensors": {"a": (2, 3)}})).parameters == 6

    @pytest.mark.parametrize("total_size", [0, 59, 10**30])
    def test_wrong_total_is_a_warning(self, total_size: int) -> None:
        summary = run(sharded(SHARDS, total_size=total_size))
        assert summary.parameters == 15
        if total_size < 2**64:
            assert "total_size" in summary.warnings[0]

    @pytest.mark.parametrize("metadata", [None, [], {}, {"total_size": "60"}, {"total_size": 6e1}])
    def test_total_of_another_kind_is_ignored(self, metadata: Any) -> None:
        files = sharded(SHARDS)
        weight_map = {"a": ONE, "b": ONE, "c": TWO}
        files[INDEX] = dumps({"metadata": metadata, "weight_map": weight_map})
        assert run(files).warnings == ()

    def test_missing_shard(self) -> None:
        files = sharded(SHARDS)
        del files[TWO]
        error = refusal(files)
        assert error.code is FailureCode.MISSING_SHARD
        assert TWO in error.message

    @pytest.mark.parametrize("shard", ["../x.safetensors", "/etc/passwd", "", "config.json", "x\n"])
    def test_shard_that_cannot_be(self, shard: str) -> None:
        error = refusal(sharded(SHARDS, {"a": ONE, "b": ONE, "c": shard}))
        assert error.code is FailureCode.MISSING_SHARD
        assert error.message.isprintable()

    @pytest.mark.parametrize(
        ("weight_map", "fault"),
        [
            ({"a": ONE, "b": ONE}, "does not mention the shards"),
            ({"a": ONE, "c": TWO}, "does not mention tensors"),
            ({"a": ONE, "b": ONE, "c": TWO, "d": TWO}, "are not in it"),
            ({"a": ONE, "b": TWO, "c": TWO}, "'b'"),
            ({"a": ONE, "b": ONE, "c": 1}, "does not give a file name"),
            ({"a": ONE, "b": ONE, "c": None}, "does not give a file name"),
            ({"a": ONE, "b": ONE, "c": [TWO]}, "does not give a file name"),
            ({}, "has no object 'weight_map'"),
            ([], "has no object 'weight_map'"),
            ("x", "has no object 'weight_map'"),
        ],
    )
    def test_inconsistent_index(self, weight_map: Any, fault: str) -> None:
        error = refusal(sharded(SHARDS, weight_map))
        assert error.code is FailureCode.BAD_INDEX
        assert fault in error.message

    @pytest.mark.parametrize("index", [b"[]", b"{}", b"null", b"7"])
    def test_index_of_another_kind(self, index: bytes) -> None:
        assert refusal({**sharded(SHARDS), INDEX: index}).code is FailureCode.BAD_INDEX

    def test_tensor_in_two_shards(self) -> None:
        shards = {ONE: {"a": (2,)}, TWO: {"a": (2,), "b": (2,)}}
        error = refusal(sharded(shards, {"a": ONE, "b": TWO}))
        assert error.code is FailureCode.BAD_INDEX

    def test_long_lists_are_cut(self) -> None:
        shapes = {f"tensor{n}": (1,) for n in range(1000)}
        error = refusal(sharded({ONE: shapes, TWO: {"c": (1,)}}, {"tensor0": ONE, "c": TWO}))
        assert "and 996 more" in error.message
        assert len(error.message) < 500

    def test_no_index(self) -> None:
        files = sharded(SHARDS)
        del files[INDEX]
        error = refusal(files)
        assert error.code is FailureCode.MISSING_INDEX
        assert INDEX in error.message

    def test_neither_index_nor_all_shards(self) -> None:
        files = {**model(model_safetensors=None), TWO: weights()}
        error = refusal(files)
        assert error.code is FailureCode.MISSING_INDEX
        assert ONE in error.message
        assert INDEX in error.message

    def test_one_shard_of_a_lying_many(self) -> None:
        name = "model-00001-of-99999.safetensors"
        error = refusal({**model(model_safetensors=None), name: weights()})
        assert error.code is FailureCode.MISSING_INDEX
        assert len(error.message) < 500

    def test_weights_twice(self) -> None:
        files = {**sharded(SHARDS), "model.safetensors": weights()}
        assert refusal(files).code is FailureCode.AMBIGUOUS_WEIGHTS
        del files[INDEX]
        assert refusal(files).code is FailureCode.AMBIGUOUS_WEIGHTS
